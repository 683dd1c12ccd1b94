// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/schedule.h"

#include "cost_model/flows/round_simulator.h"
#include "ir/base/rng.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

/// Three servers on a ring of cables: the ring all-reduce, worked out by hand.
Topology triangle() { return *make_topology("torus:3"); }

FlowSchedule ring_of_three() {
  FlowSchedule schedule = {3, 1, {{0, 1, {0}}, {1, 2, {2}}, {2, 0, {4}}}, {}, {}};
  // Chunk r comes from r + 1 by r + 2 to r, then goes by r + 1 to r + 2.
  for (int r = 0; r < 3; ++r) {
    schedule.reduce_scatter.push_back({r, (r + 1) % 3, 0});
    schedule.reduce_scatter.push_back({r, (r + 2) % 3, 1});
    schedule.all_gather.push_back({r, r, 2});
    schedule.all_gather.push_back({r, (r + 1) % 3, 3});
  }
  normalize(schedule);
  return schedule;
}

TEST(FlowSchedule, CountsRounds) {
  FlowSchedule schedule = ring_of_three();
  EXPECT_EQ(schedule.reduce_scatter_rounds(), 2);
  EXPECT_EQ(schedule.all_gather_rounds(), 2);
  EXPECT_EQ(schedule.rounds(), 4);
}

TEST(FlowSchedule, OfARingIsValidAndSums) {
  EXPECT_EQ(verify_schedule(triangle(), ring_of_three()).message(), "");
  EXPECT_EQ(check_sums(ring_of_three(), 1).message(), "");
}

TEST(FlowSchedule, SaysWhatIsWrongWithIt) {
  const auto verdict = [](auto change) {
    FlowSchedule schedule = ring_of_three();
    change(schedule);
    return verify_schedule(triangle(), schedule).message();
  };
  EXPECT_THAT(verdict([](auto& s) { s.reduce_scatter.pop_back(); }),
              HasSubstr("reduce-scatter: s1 never sends sub-chunk 2.0"));
  EXPECT_THAT(verdict([](auto& s) { s.all_gather.pop_back(); }),
              HasSubstr("all-gather: s1 never gets sub-chunk 2.0"));
  EXPECT_THAT(verdict([](auto& s) {
                s.all_gather[0].round = 1;
                s.all_gather[1].round = 0;
                normalize(s);
              }),
              HasSubstr("carries 1 units a round"));
  EXPECT_THAT(verdict([](auto& s) {
                s.all_gather[3].round = 9;
                normalize(s);
                s.all_gather[0].round = 1;
              }),
              HasSubstr("link"));
  EXPECT_THAT(verdict([](auto& s) { s.routes[0].links = {2}; }), HasSubstr("is not a path"));
  EXPECT_THAT(verdict([](auto& s) {
                s.routes[0] = {0, 2, {0, 2}};
              }),
              HasSubstr("passes server s1"));
  EXPECT_THAT(verdict([](auto& s) { std::swap(s.reduce_scatter[0], s.reduce_scatter[5]); }),
              HasSubstr("not in order"));
  EXPECT_THAT(verdict([](auto& s) { s.servers = 4; }), HasSubstr("4 servers"));
}

TEST(FlowSchedule, SendersMustHaveWhatTheySend) {
  FlowSchedule early = ring_of_three();
  for (Workload& w : early.reduce_scatter) w.round = 1 - w.round;
  normalize(early);
  EXPECT_THAT(verify_schedule(triangle(), early).message(), HasSubstr("sent its sum in round 0"));
  EXPECT_THAT(check_sums(early, 1).message(), HasSubstr("in place of the sum"));
  FlowSchedule late = ring_of_three();
  for (Workload& w : late.all_gather) w.round = 5 - w.round;
  normalize(late);
  EXPECT_THAT(verify_schedule(triangle(), late).message(), HasSubstr("does not have it"));
  EXPECT_THAT(check_sums(late, 1).message(), HasSubstr("in place of the sum"));
}

TEST(FlowSchedule, MirroredAllGatherIsAReduceScatter) {
  const Topology topology = triangle();
  FlowSchedule schedule = ring_of_three();
  const FlowSchedule gather = {3, 1, schedule.routes, {}, schedule.all_gather};
  // Made for the reversed network: link 0 leads from 1 to 0 there.
  FlowSchedule back = gather;
  back.routes = {{1, 0, {0}}, {2, 1, {2}}, {0, 2, {4}}};
  back.all_gather = {{0, 2, 0}, {1, 0, 0}, {2, 1, 0}, {0, 1, 1}, {1, 2, 1}, {2, 0, 1}};
  const FlowSchedule whole = joined(mirrored(back), gather);
  EXPECT_EQ(verify_schedule(topology, whole).message(), "");
  EXPECT_EQ(check_sums(whole, 2).message(), "");
  EXPECT_EQ(whole.routes.size(), 3u) << "routes that are alike are one";
}

/// Every sub-chunk along the star of its owner.
FlowForest stars(const Topology& topology, int sub_chunks) {
  FlowForest forest = {topology.servers, sub_chunks, {}, {}};
  const auto n = static_cast<std::size_t>(topology.servers);
  for (int u = 0; u < topology.servers; ++u) {
    for (int v = 0; v < topology.servers; ++v) forest.routes.push_back({u, v, {2 * u, 2 * v + 1}});
  }
  for (int chunk = 0; chunk < topology.servers * sub_chunks; ++chunk) {
    const int owner = chunk / sub_chunks;
    FlowTree tree = {chunk, std::vector<std::int32_t>(n, -1), std::vector<std::int32_t>(n, -1)};
    for (int v = 0; v < topology.servers; ++v) {
      if (v == owner) continue;
      tree.down[static_cast<std::size_t>(v)] = owner * topology.servers + v;
      tree.up[static_cast<std::size_t>(v)] = v * topology.servers + owner;
    }
    forest.trees.push_back(std::move(tree));
  }
  return forest;
}

/// Sends the first ready job that fits until none does, round by round.
FlowSchedule first_come(const Topology& topology, const FlowForest& forest, bool barrier) {
  RoundSimulator simulator(topology, forest, barrier);
  EXPECT_EQ(simulator.jobs(), simulator.jobs_left());
  while (!simulator.done()) {
    for (std::size_t i = 0; i < simulator.ready().size();) {
      if (simulator.fits(simulator.ready()[i])) {
        simulator.send(i);
      } else {
        ++i;
      }
    }
    simulator.next_round();
  }
  return simulator.schedule();
}

TEST(RoundSimulator, PlaysStarsOnASwitch) {
  const Topology topology = *make_topology("switch:4");
  for (const bool barrier : {true, false}) {
    for (const int sub_chunks : {1, 3}) {
      const FlowForest forest = stars(topology, sub_chunks);
      ASSERT_EQ(verify_forest(topology, forest).message(), "");
      const FlowSchedule schedule = first_come(topology, forest, barrier);
      EXPECT_EQ(verify_schedule(topology, schedule).message(), "");
      EXPECT_EQ(check_sums(schedule, 3).message(), "");
      EXPECT_GE(schedule.rounds(), 6);
    }
  }
}

TEST(RoundSimulator, KnowsWhatHangsOnAJob) {
  const Topology topology = *make_topology("torus:3");
  // Sub-chunk 0 comes 2 -> 1 -> 0 and goes 0 -> 1 -> 2; the others along stars.
  FlowForest forest = {
      3, 1, {{0, 1, {0}}, {1, 0, {1}}, {1, 2, {2}}, {2, 1, {3}}, {2, 0, {4}}, {0, 2, {5}}}, {}};
  forest.trees = {
      {0, {-1, 1, 3}, {-1, 0, 2}}, {1, {0, -1, 3}, {1, -1, 2}}, {2, {5, 2, -1}, {4, 3, -1}}};
  ASSERT_EQ(verify_forest(topology, forest).message(), "");
  const RoundSimulator simulator(topology, forest, false);
  EXPECT_EQ(simulator.height_of({0, 2, false}), 4);
  EXPECT_EQ(simulator.height_of({0, 1, false}), 3);
  EXPECT_EQ(simulator.weight_of({0, 2, false}), 4);
  EXPECT_EQ(simulator.height_of({0, 1, true}), 2);
  EXPECT_EQ(simulator.weight_of({0, 2, true}), 1);
  EXPECT_EQ(simulator.height_of({1, 0, false}), 2);
  EXPECT_EQ(simulator.weight_of({1, 0, false}), 3);
}

TEST(RoundSimulator, RefusesTreesThatAreNone) {
  const Topology topology = *make_topology("switch:3");
  FlowForest cycle = stars(topology, 1);
  cycle.trees[0].down[1] = 2 * 3 + 1;
  cycle.trees[0].down[2] = 1 * 3 + 2;
  EXPECT_THAT(verify_forest(topology, cycle).message(), HasSubstr("does not reach all others"));
  FlowForest other = stars(topology, 1);
  other.trees[0].up[1] = 2;
  EXPECT_THAT(verify_forest(topology, other).message(), HasSubstr("another server's route"));
}

}  // namespace
}  // namespace agpcs
