// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/device_lattice.h"

#include "planner/seed/chain_partition.h"
#include "planner/seed/linear_costs.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

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

TEST(DeviceLattice, GroupsOfOneHostMeetAtTheirDevicesAndThoseOfTwoInOnePlace) {
  const Cluster cluster = fast_and_slow();
  bool exact = false;
  const auto lattice = lattice_of_classes(cluster, 1000, exact);
  ASSERT_TRUE(lattice.has_value());
  EXPECT_EQ(lattice->places.size(), 5u);  // first and last device of each host, and both hosts
  const auto host_of = [&](DeviceId id) {
    return cluster.devices.at(static_cast<std::size_t>(id)).host;
  };
  for (int g = 0; g < static_cast<int>(lattice->groups.size()); ++g) {
    const ChainGroup& group = lattice->groups[static_cast<std::size_t>(g)];
    std::set<int> hosts;
    for (const DeviceId id : lattice->devices_of(g)) hosts.insert(host_of(id));
    for (const int number : {group.entry, group.exit}) {
      const LinearPlace& place = lattice->places.at(static_cast<std::size_t>(number));
      EXPECT_EQ(place.hosts, static_cast<int>(hosts.size()));
      EXPECT_TRUE(hosts.count(host_of(place.device)) == 1);
      EXPECT_EQ(host_of(place.elsewhere) != host_of(place.device), hosts.size() == 2);
    }
    if (hosts.size() == 2) {
      EXPECT_EQ(group.entry, group.exit);
    }
  }
}

/// The group of units [from, to) of a lattice of runs.
int group_between(const DeviceLattice& lattice, int from, int to) {
  const auto found =
      std::find_if(lattice.groups.begin(), lattice.groups.end(),
                   [&](const ChainGroup& group) { return group.from == from && group.to == to; });
  return static_cast<int>(found - lattice.groups.begin());
}

/// Every piece a block.
std::vector<int> all_bounds(const Problem& problem) {
  std::vector<int> bounds(static_cast<std::size_t>(problem.blocks.size()) + 1);
  for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = static_cast<int>(i);
  return bounds;
}

TEST(LinearCosts, HostsSideBySideShareACut) {
  const Cluster cluster = cluster_of(
      "kind x memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "host a x 2 nic=1e9\nhost b x 2 nic=1e9\nhost c x 2 nic=1e9\nhost d x 2 nic=1e9\n");
  const auto problem = problem_of(chain(4, 1024), cluster, 4096);
  const DeviceLattice lattice = lattice_of_runs(problem->cluster, {0, 1, 2, 3, 4, 5, 6, 7}, 8);
  const PieceSums sums(*problem, all_bounds(*problem));
  RoughModel model(*problem);
  LinearCosts costs(sums, lattice, model);
  costs.set(1, 1);
  const auto cut = [&](std::pair<int, int> first, std::pair<int, int> second) {
    const int a = group_between(lattice, first.first, first.second);
    const int b = group_between(lattice, second.first, second.second);
    return costs.cut_seconds(1, lattice.groups.at(static_cast<std::size_t>(a)).exit,
                             lattice.groups.at(static_cast<std::size_t>(b)).entry);
  };
  const double alone = cut({0, 2}, {2, 4});
  EXPECT_NEAR(alone, 16.8e-3, 0.5e-3);  // 4096 samples of 1024 floats at 1 GB/s
  EXPECT_NEAR(cut({0, 4}, {4, 8}) / alone, 0.5, 0.02) << "two hosts to two";
  EXPECT_NEAR(cut({0, 4}, {4, 6}) / alone, 1, 0.02) << "two hosts to one";
  EXPECT_NEAR(cut({0, 3}, {3, 4}) / alone, 1, 0.02) << "the second host is shared";
  EXPECT_LT(cut({0, 1}, {1, 2}), alone / 5) << "inside a host";
}

TEST(LinearCosts, AStageFillsNoMoreThanThePartOfItsDevicesThatItMay) {
  const auto problem = problem_of(chain(4, 1024), fast_and_slow("80e6"), 64);  // 34 MB of weights
  const DeviceLattice lattice = lattice_of_runs(problem->cluster, {0, 1, 2, 3}, 4);
  const PieceSums sums(*problem, all_bounds(*problem));
  RoughModel model(*problem);
  LinearCosts costs(sums, lattice, model);
  const int all = group_between(lattice, 0, 4);
  costs.set(1, 1);
  const double seconds = costs.stage_seconds(0, sums.pieces(), all, 0);
  EXPECT_TRUE(std::isfinite(seconds));
  costs.set(1, 0.7);
  EXPECT_EQ(costs.stage_seconds(0, sums.pieces(), all, 0), seconds);
  costs.set(1, 0.4);
  EXPECT_TRUE(std::isinf(costs.stage_seconds(0, sums.pieces(), all, 0)));
  EXPECT_TRUE(std::isfinite(costs.stage_seconds(0, 1, all, 0))) << "a stage of one piece";
}

TEST(LinearCosts, AStageThatLacksMemoryHasTheHelpThatTakesLeast) {
  for (const double bandwidth : {1e9, 1e12}) {
    Graph graph = chain(8, 1024);
    Training training = training_of(graph, 64);
    training.optimizer.kind = OptimizerKind::kAdam;
    Cluster cluster = fast_and_slow("110e6");  // 34 MB of weights, and of gradients, 67 of state
    for (DeviceKind& kind : cluster.kinds) kind.host_link = {"pcie", bandwidth, 0};
    for (Host& host : cluster.hosts) host.memory_bytes = 1'000'000'000;
    const auto problem = *Problem::make(std::move(graph), std::move(cluster), training);
    const DeviceLattice lattice = lattice_of_runs(problem->cluster, {0, 1, 2, 3}, 4);
    const PieceSums sums(*problem, all_bounds(*problem));
    RoughModel model(*problem);
    LinearCosts costs(sums, lattice, model);
    const int all = group_between(lattice, 0, 4), end = sums.pieces();
    costs.set(2, 1, false);
    EXPECT_TRUE(std::isinf(costs.stage_seconds(0, end, all, 0))) << "its state does not fit";
    costs.set(2, 10, false);
    const double roomy = costs.stage_seconds(0, end, all, 0);
    costs.set(2, 1, true);
    EXPECT_DOUBLE_EQ(costs.stage_seconds(0, end, all, 0), roomy + 8 * 8 * (1 << 20) / bandwidth / 2)
        << "a micro-batch has half of the copies";
  }
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
    const ChainGroup& group = lattice.groups[static_cast<std::size_t>(g)];
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
    const PieceSums sums(*problem, all_bounds(*problem));
    RoughModel model(*problem);
    LinearCosts costs(sums, *lattice, model);
    costs.set(4, 1);
    ChainProblem linear;
    linear.pieces = sums.pieces();
    linear.states = lattice->states;
    linear.groups = lattice->groups;
    linear.most_stages = 3;
    linear.stage_seconds = [&](int i, int j, int group, int later, double most) {
      return costs.stage_seconds(i, j, group, later, most);
    };
    linear.cut_seconds = [&](int i, int exit, int entry) {
      return costs.cut_seconds(i, exit, entry);
    };
    for (const ChainPlan& plan : partition_chain(linear)) {
      const int stages = static_cast<int>(plan.stages.size());
      EXPECT_DOUBLE_EQ(plan.seconds, try_all(costs, *lattice, sums.pieces(), stages, 0, {2, 2}, 0));
    }
  }
}

}  // namespace
}  // namespace agpcs::testing
