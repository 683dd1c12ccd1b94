// SPDX-License-Identifier: Apache-2.0
// Schedules that something was done to: no change that does harm passes both checkers.
#include "cost_model/flows/schedule.h"
#include "planner/flows/method.h"
#include "tests/planner/flows/random_topologies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Plain and slow, apart from the code under test: paths, units, and how often each server's
/// contribution is in what each server has of a sub-chunk.
bool does_its_work(const Topology& topology, const FlowSchedule& schedule) {
  const auto n = static_cast<std::size_t>(schedule.servers);
  std::map<std::pair<int, int>, std::int64_t> load;  // link, round
  std::map<int, std::vector<std::pair<bool, Workload>>> rounds;
  for (const bool gather : {false, true}) {
    for (const Workload& w : gather ? schedule.all_gather : schedule.reduce_scatter) {
      if (w.chunk < 0 || w.chunk >= schedule.servers * schedule.sub_chunks || w.round < 0) {
        return false;
      }
      const FlowRoute& route = schedule.routes[static_cast<std::size_t>(w.route)];
      int at = route.from;
      for (const int l : route.links) {
        const Topology::Link& link = topology.links[static_cast<std::size_t>(l)];
        if (link.from != at || (at != route.from && topology.is_server(at))) return false;
        if (++load[{l, w.round}] > link.capacity) return false;
        at = link.to;
      }
      if (at != route.to) return false;
      rounds[w.round].push_back({gather, w});
    }
  }
  using Counts = std::vector<int>;  // by server that contributed
  std::vector<std::vector<Counts>> has(n * static_cast<std::size_t>(schedule.sub_chunks));
  for (std::vector<Counts>& of_chunk : has) {
    for (std::size_t s = 0; s < n; ++s) {
      of_chunk.emplace_back(n, 0);
      of_chunk.back()[s] = 1;
    }
  }
  for (const auto& [round, workloads] : rounds) {
    const auto before = has;
    for (const auto& [gather, w] : workloads) {
      const FlowRoute& route = schedule.routes[static_cast<std::size_t>(w.route)];
      const Counts& sent =
          before[static_cast<std::size_t>(w.chunk)][static_cast<std::size_t>(route.from)];
      Counts& mine = has[static_cast<std::size_t>(w.chunk)][static_cast<std::size_t>(route.to)];
      for (std::size_t s = 0; s < n; ++s) mine[s] = gather ? sent[s] : mine[s] + sent[s];
    }
  }
  for (const std::vector<Counts>& of_chunk : has) {
    for (const Counts& counts : of_chunk) {
      if (counts != Counts(n, 1)) return false;
    }
  }
  return true;
}

enum class Change { kRound, kRoute, kChunk, kDropped, kDoubled, kPhase, kLink, kLater };
constexpr int kChanges = 8;

void keep_sorted(FlowSchedule& schedule) {
  for (auto* phase : {&schedule.reduce_scatter, &schedule.all_gather}) {
    std::sort(phase->begin(), phase->end(), [](const Workload& a, const Workload& b) {
      return std::tie(a.round, a.chunk, a.route) < std::tie(b.round, b.chunk, b.route);
    });
  }
}

/// False: the change left everything as it was.
bool corrupt(const Topology& topology, FlowSchedule& schedule, Change change, Rng& rng) {
  const bool gather = rng.below(2) == 1;
  std::vector<Workload>& phase = gather ? schedule.all_gather : schedule.reduce_scatter;
  const std::size_t index = rng.below(phase.size());
  Workload& w = phase[index];
  const Workload before = w;
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(below)));
  };
  switch (change) {
    case Change::kRound:
      w.round = draw(schedule.sub_rounds());
      break;
    case Change::kRoute:
      w.route = draw(static_cast<std::int64_t>(schedule.routes.size()));
      break;
    case Change::kChunk:
      w.chunk = draw(schedule.servers * schedule.sub_chunks);
      break;
    case Change::kLater:
      w.round = static_cast<std::int32_t>(schedule.sub_rounds());
      break;
    case Change::kDropped:
      phase.erase(phase.begin() + static_cast<std::ptrdiff_t>(index));
      return true;
    case Change::kDoubled: {
      Workload again = w;
      again.round = draw(schedule.sub_rounds() + 1);
      phase.push_back(again);
      keep_sorted(schedule);
      return true;
    }
    case Change::kPhase: {
      const Workload moved = w;
      phase.erase(phase.begin() + static_cast<std::ptrdiff_t>(index));
      (gather ? schedule.reduce_scatter : schedule.all_gather).push_back(moved);
      keep_sorted(schedule);
      return true;
    }
    case Change::kLink: {
      FlowRoute& route = schedule.routes[static_cast<std::size_t>(w.route)];
      int& link = route.links[rng.below(route.links.size())];
      const int other = draw(static_cast<std::int64_t>(topology.links.size()));
      return std::exchange(link, other) != other;
    }
  }
  const bool changed =
      w.round != before.round || w.route != before.route || w.chunk != before.chunk;
  keep_sorted(schedule);
  return changed;
}

/// Changes after which nothing can be right.
bool always_harms(Change change) {
  return change == Change::kDropped || change == Change::kDoubled || change == Change::kPhase ||
         change == Change::kChunk;
}

TEST(CorruptedSchedules, NeverPassBothCheckersUnlessTheyStillWork) {
  std::map<std::pair<int, bool>, int> seen;  // change, whether both passed
  Rng rng = Rng(1).fork("corruptions");
  for (std::uint64_t seed = 0; seed < 250; ++seed) {
    RandomTopologyOptions random;
    random.most_servers = 8;
    const Topology topology = random_topology(seed, random);
    FlowOptions options;
    options.seed = seed;
    options.barrier = seed % 2 == 0;
    const char* methods[] = {"parameter_server", "ring", "greedy", "trees"};
    const FlowMethod& method = **find_flow_method(methods[seed % 4]);
    const FlowSchedule valid = *method.schedule(topology, options);
    ASSERT_TRUE(does_its_work(topology, valid)) << topology.name;
    for (int i = 0; i < 4 * kChanges; ++i) {
      const auto change = static_cast<Change>(i % kChanges);
      FlowSchedule schedule = valid;
      if (!corrupt(topology, schedule, change, rng)) continue;
      const Status rules = verify_schedule(topology, schedule);
      const bool sums = check_sums(schedule, seed).ok();
      const std::string where = topology.name + " " + method.name.data() + " change " +
                                std::to_string(i % kChanges) + ": " + rules.message();
      ++seen[{i % kChanges, rules.ok() && sums}];
      if (rules.ok()) {
        EXPECT_TRUE(sums) << where;
        EXPECT_TRUE(does_its_work(topology, schedule)) << where;
      }
      EXPECT_TRUE(sums || !rules.ok()) << where;
      EXPECT_FALSE(always_harms(change) && rules.ok()) << where;
    }
  }
  for (int change = 0; change < kChanges; ++change)
    EXPECT_GT((seen[{change, false}]), 100) << change;
  // Some do no harm: another free round, another way between the same servers.
  EXPECT_GT((seen[{static_cast<int>(Change::kRound), true}]), 20);
  EXPECT_GT((seen[{static_cast<int>(Change::kLater), true}]), 20);
}

TEST(CorruptedSchedules, AreSeenBySumsAloneWhereDataGoesWrong) {
  // Nothing but numbers: what is dropped, doubled or sent before it is there does not sum up.
  int wrong = 0;
  Rng rng = Rng(2).fork("corruptions");
  const Topology topology = *make_topology("bcube:3,1");
  const FlowSchedule valid = *(*find_flow_method("greedy"))->schedule(topology, {});
  for (int i = 0; i < 200; ++i) {
    FlowSchedule schedule = valid;
    corrupt(topology, schedule, Change::kDropped, rng);
    EXPECT_FALSE(check_sums(schedule, 1).ok());
    schedule = valid;
    if (corrupt(topology, schedule, Change::kChunk, rng)) wrong += !check_sums(schedule, 1).ok();
  }
  EXPECT_GT(wrong, 150);
}

}  // namespace
}  // namespace agpcs
