// SPDX-License-Identifier: Apache-2.0
#include "planner/device_lattice.h"

#include "planner/linear_costs.h"
#include "planner/linear_program.h"
#include "tests/planner/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

namespace agpcs::testing {
namespace {

TEST(DeviceLattice, HasEveryNumberOfDevicesOfEachClass) {
  bool exact = false;
  const auto lattice = lattice_of_classes(fast_and_slow(), 1000, exact);
  ASSERT_TRUE(lattice.has_value());
  EXPECT_TRUE(exact);
  EXPECT_EQ(lattice->states, 9);
  EXPECT_EQ(lattice->groups.size(), 6u * 6u - 9u);
  const std::set<std::vector<int>> kinds(lattice->taken.begin(), lattice->taken.end());
  EXPECT_EQ(kinds.size(), 8u);
}

TEST(DeviceLattice, MakesUnitsWhereDevicesAreMany) {
  bool exact = true;
  const Cluster cluster = cluster_of(
      "kind x fp32=1e12\nkind y fp32=2e12\nhost a x 4\nhost b x 4\nhost c y 4\nhost d y 4\n");
  const auto lattice = lattice_of_classes(cluster, 400, exact);
  ASSERT_TRUE(lattice.has_value());
  EXPECT_FALSE(exact);
  ASSERT_EQ(lattice->units.size(), 2u);  // by kind: hosts a and b are alike
  EXPECT_EQ(lattice->units[0].size(), 4u);
  EXPECT_EQ(lattice->units[0][1], (std::vector<DeviceId>{2, 3}));
}

TEST(DeviceLattice, ConsecutiveStagesShareNoDevice) {
  bool exact = false;
  const auto lattice = lattice_of_classes(fast_and_slow(), 1000, exact);
  for (int a = 0; a < static_cast<int>(lattice->groups.size()); ++a) {
    for (int b = 0; b < static_cast<int>(lattice->groups.size()); ++b) {
      if (lattice->groups[static_cast<std::size_t>(a)].to !=
          lattice->groups[static_cast<std::size_t>(b)].from) {
        continue;
      }
      const DeviceGroups groups = lattice->devices_of({{0, 1, a}, {1, 2, b}});
      std::set<DeviceId> all(groups[0].begin(), groups[0].end());
      all.insert(groups[1].begin(), groups[1].end());
      EXPECT_EQ(all.size(), groups[0].size() + groups[1].size());
    }
  }
}

TEST(DeviceLattice, RunsAreThoseOfTheOrder) {
  const DeviceLattice lattice = lattice_of_runs(fast_and_slow(), {3, 2, 1, 0}, 2);
  EXPECT_EQ(lattice.states, 3);
  ASSERT_EQ(lattice.groups.size(), 3u);
  EXPECT_EQ(lattice.devices_of(0), (std::vector<DeviceId>{2, 3}));
  EXPECT_EQ(lattice.devices_of(1), (std::vector<DeviceId>{0, 1, 2, 3}));
}

/// The least slowest stage or cut over all ordered groups of devices, device by device.
double try_all(const LinearCosts& costs, const DeviceLattice& lattice, int pieces, int stages,
               int piece, const std::vector<int>& left, int exit) {
  if (stages == 0) return piece == pieces ? 0 : std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  for (int g = 0; g < static_cast<int>(lattice.groups.size()); ++g) {
    const std::vector<int>& taken = lattice.taken[static_cast<std::size_t>(g)];
    std::vector<int> rest = left;
    bool enough = true;
    for (std::size_t c = 0; c < left.size(); ++c) {
      rest[c] -= taken[c];
      enough = enough && rest[c] >= 0;
    }
    const LinearGroup& group = lattice.groups[static_cast<std::size_t>(g)];
    if (!enough) continue;
    for (int end = piece + 1; end <= pieces; ++end) {
      const double cut = piece > 0 ? costs.cut_seconds(piece, exit, group.entry) : 0;
      best = std::min(
          best, std::max({cut, costs.stage_seconds(piece, end, g, stages - 1),
                          try_all(costs, lattice, pieces, stages - 1, end, rest, group.exit)}));
    }
  }
  return best;
}

TEST(DeviceLattice, TheProgramOnItIsTheBestOfAllMixedGroups) {
  for (const char* nic : {"1e9", "20e9"}) {
    const auto problem = problem_of(chain(4), fast_and_slow("16e9", nic), 64);
    bool exact = false;
    const auto lattice = lattice_of_classes(problem->cluster, 1000, exact);
    std::vector<int> bounds(static_cast<std::size_t>(problem->blocks.size()) + 1);
    for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = static_cast<int>(i);
    const PieceSums sums(*problem, bounds);
    LinearCosts costs(sums, *lattice);
    costs.set(4, 1);
    LinearProblem linear;
    linear.pieces = sums.pieces();
    linear.states = lattice->states;
    linear.groups = lattice->groups;
    linear.most_stages = 3;
    linear.stage_seconds = [&](int i, int j, int group, int later) {
      return costs.stage_seconds(i, j, group, later);
    };
    linear.cut_seconds = [&](int i, int exit, int entry) {
      return costs.cut_seconds(i, exit, entry);
    };
    for (const LinearPlan& plan : solve_linear(linear)) {
      const int stages = static_cast<int>(plan.stages.size());
      EXPECT_DOUBLE_EQ(plan.seconds, try_all(costs, *lattice, sums.pieces(), stages, 0, {2, 2}, 0));
    }
  }
}

}  // namespace
}  // namespace agpcs::testing
