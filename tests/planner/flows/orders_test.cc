// SPDX-License-Identifier: Apache-2.0
// Orders in which ranks replay a schedule: what is taken is the fastest, sums, and ends.
#include "cost_model/flows/exchange.h"
#include "cost_model/flows/time.h"
#include "planner/flows/method.h"
#include "tests/bench/network/cube_mesh.h"
#include "tests/planner/flows/random_topologies.h"
#include "tests/support/plan_flows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::int64_t kGigabyte = 1'000'000'000;

FlowSchedule schedule_by(std::string_view method, const Topology& topology, FlowOptions options) {
  Result<FlowSchedule> schedule = (*find_flow_method(method))->schedule(topology, options);
  EXPECT_TRUE(schedule.ok()) << schedule.status().message();
  normalize(*schedule);
  return std::move(*schedule);
}

/// All messages of a schedule in rounds, and which of them are over when a message moves.
class Before {
  static constexpr std::size_t kMostMessages = 1024;
  using Messages = std::bitset<kMostMessages>;

 public:
  Before(const FlowSchedule& schedule, const std::vector<RoundWait>& waits)
      : schedule_(schedule), waits_(waits) {
    for (const auto* phase : {&schedule.reduce_scatter, &schedule.all_gather}) {
      for (const Workload& w : *phase) messages_.push_back(w);
    }
    EXPECT_LE(messages_.size(), kMostMessages);
    over_.resize(messages_.size());
    std::stable_sort(messages_.begin(), messages_.end(),
                     [](const Workload& a, const Workload& b) { return a.round < b.round; });
    for (std::size_t m = 0; m < messages_.size(); ++m) {
      add(over_[m], route(m).from, messages_[m].round, true);
      add(over_[m], route(m).to, messages_[m].round, true);
    }
  }

  /// The first two messages of different rounds that may be on one link at once.
  std::string first_together() const {
    for (std::size_t later = 0; later < messages_.size(); ++later) {
      for (std::size_t m = 0; m < messages_.size(); ++m) {
        if (messages_[m].round >= messages_[later].round || over_[later].test(m)) continue;
        for (const int link : route(m).links) {
          const std::vector<int>& mine = route(later).links;
          if (std::find(mine.begin(), mine.end(), link) == mine.end()) continue;
          return fmt::format("round {} from {} to {} and round {} from {} to {}",
                             messages_[m].round, route(m).from, route(m).to, messages_[later].round,
                             route(later).from, route(later).to);
        }
      }
    }
    return "none";
  }

 private:
  const FlowRoute& route(std::size_t m) const {
    return schedule_.routes[static_cast<std::size_t>(messages_[m].route)];
  }

  /// What is over when `server` is through with all rounds before `round`, and, with `begins`, has
  /// had all words for it.
  void add(Messages& over, int server, std::int32_t round, bool begins) const {
    for (std::size_t m = 0; m < messages_.size() && messages_[m].round < round; ++m) {
      if (route(m).from != server && route(m).to != server) continue;
      over.set(m);
      over |= over_[m];
    }
    for (const RoundWait& wait : waits_) {
      const bool counts = begins ? wait.round <= round : wait.round < round;
      if (wait.to == server && counts) add(over, wait.from, wait.round, false);
    }
  }

  const FlowSchedule& schedule_;
  const std::vector<RoundWait>& waits_;
  std::vector<Workload> messages_;
  std::vector<Messages> over_;  // by message
};

TEST(FlowOrders, WithTheWaitsNoLinkHasMessagesOfTwoRounds) {
  int waits_in_all = 0, shared_without = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    RandomTopologyOptions drawn;
    drawn.least_servers = 8;
    drawn.most_switches = 6;
    const Topology topology = random_topology(seed, drawn);
    FlowOptions options;
    options.barrier = seed % 2 == 0;
    const FlowSchedule schedule = as_replayed(schedule_by("trees", topology, options));
    const std::vector<RoundWait> waits = link_waits(schedule);
    EXPECT_EQ(Before(schedule, waits).first_together(), "none") << seed;
    if (waits.empty()) continue;
    waits_in_all += static_cast<int>(waits.size());
    shared_without += Before(schedule, {}).first_together() == "none" ? 0 : 1;
    std::vector<RoundWait> fewer = waits;  // without those of the last round that has some
    std::erase_if(fewer, [&](const RoundWait& w) { return w.round == waits.back().round; });
    EXPECT_NE(Before(schedule, fewer).first_together(), "none") << seed;
  }
  EXPECT_GT(waits_in_all, 0);
  EXPECT_GT(shared_without, 0);
}

TEST(FlowOrders, TheOneTakenIsTheFastestAndAllSum) {
  std::set<FlowOrder> taken;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomTopologyOptions drawn;
    drawn.least_servers = 3;
    const Topology topology = random_topology(seed, drawn);
    const std::vector<Link> links = links_of(topology, 1e9, 5e-6);
    FlowOptions options;
    options.barrier = seed % 2 == 0;
    for (const std::string_view method : {"trees", "greedy", "search"}) {
      const FlowSchedule schedule = schedule_by(method, topology, options);
      const std::vector<PlanFlow> flows = plan_flows_of(schedule);
      for (const PlanFlow& flow : flows) {
        const Status sums = verify_flow(flow, topology.servers);
        EXPECT_TRUE(sums.ok()) << topology.name << ": " << sums.message();
        EXPECT_TRUE(testing::flow_sums(flow, topology.servers)) << topology.name;
      }
      for (const std::int64_t bytes : {std::int64_t{1'000}, std::int64_t{1'000'000}, kGigabyte}) {
        const TimedReplay best = fastest_replay(links, schedule, bytes);
        const std::vector<TimedReplay> all = replay_seconds(links, schedule, bytes);
        ASSERT_EQ(all.size(), flows.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
          EXPECT_FALSE(is_sooner(all[i].seconds, best.seconds));
          EXPECT_EQ(all[i].order, flows[i].order);
          EXPECT_EQ(all[i].waits, waits_of(flows[i]).size());
        }
        taken.insert(best.order);
      }
    }
  }
  EXPECT_EQ(taken.size(), 2u);  // there is a choice
}

// A GPU's NVLinks let it run ahead, onto the card that others still need for an earlier round.
TEST(FlowOrders, TwoBoxesOfV100TakeNoLongerThanInRounds) {
  for (const auto& [doubled, sub_chunks] : {std::pair(false, 2), {false, 8}, {true, 4}}) {
    const Topology topology = two_cube_meshes(doubled);
    const std::vector<Link> links = links_of(topology, kCardBandwidth, kBoxLatency);
    FlowOptions options;
    options.max_sub_chunks = sub_chunks;
    const FlowSchedule schedule = schedule_by("search", topology, options);
    const double in_rounds = lockstep_seconds(links, schedule, kGigabyte);
    const double by_receivers = replay_seconds(links, schedule, kGigabyte).front().seconds;
    EXPECT_GT(by_receivers, 1.1 * in_rounds) << topology.name << ", " << sub_chunks;
    const TimedReplay best = fastest_replay(links, schedule, kGigabyte);
    EXPECT_EQ(best.order, FlowOrder::kRounds);
    EXPECT_LT(best.seconds, 1.03 * in_rounds) << topology.name << ", " << sub_chunks;
  }
}

}  // namespace
}  // namespace agpcs
