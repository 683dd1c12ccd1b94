// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/plan_agreement.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/world.h"
#include "tests/tools/profile/slow_transport.h"

#include <agpcs/drift.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;

constexpr std::chrono::milliseconds kLimit(60'000);

std::string pairs_text(const Plan& plan) {
  std::string text;
  for (const auto& [from, to, bytes, messages] : link_traffic(plan)) {
    text += fmt::format("{}>{} ", from, to);
  }
  return text;
}

TEST(LinkTraffic, IsBetweenNeighboursInTheRingOfEachStage) {
  EXPECT_EQ(pairs_text(make_plan({{{4, 4, 4}}, {}})), "0>1 1>2 2>0 ");
  EXPECT_EQ(pairs_text(make_plan({{{4}}, {}})), "");
}

TEST(LinkTraffic, CountsWhatAStepSends) {
  // Buckets of 4 and of 3 fp64 elements in a ring of 2: each rank sends half of each twice.
  for (const LinkTraffic& link : link_traffic(make_plan({{{4, 4}}, {}}))) {
    EXPECT_DOUBLE_EQ(link.bytes, (4 + 3) * 8);
    EXPECT_DOUBLE_EQ(link.messages, 4);
  }
  // Three micro-batches of 4 samples of 2 x 3 fp64 elements, forth and back.
  for (const LinkTraffic& link : link_traffic(make_plan({{{4}, {4}}, {{0, 1, {"a"}}}, 3}))) {
    EXPECT_DOUBLE_EQ(link.bytes, 3 * 4 * 6 * 8);
    EXPECT_DOUBLE_EQ(link.messages, 3);
  }
  // By flows the same in all: 2 (n - 1) parts of n from each of n members.
  double bytes = 0;
  for (const LinkTraffic& link :
       link_traffic(make_plan({{{4, 4, 4}}, {}, 1, Schedule::k1F1B, AllReduce::kFlow}))) {
    bytes += link.bytes;
  }
  EXPECT_NEAR(bytes, 3 * 2 * 2 / 3.0 * (4 + 3) * 8, 1e-6);
}

TEST(LinkTraffic, OfAWireTypeIsWhatTravels) {
  const TestPlan ring = {{{4, 4}}, {}, 1, Schedule::k1F1B, AllReduce::kRing, DType::kBf16};
  for (const LinkTraffic& link : link_traffic(make_plan(ring))) {
    EXPECT_DOUBLE_EQ(link.bytes, (4 + 3) * 2);
    EXPECT_DOUBLE_EQ(link.messages, 4);
  }
  double bytes = 0;
  const TestPlan flows = {{{4, 4, 4}}, {}, 1, Schedule::k1F1B, AllReduce::kFlow, DType::kFp16};
  for (const LinkTraffic& link : link_traffic(make_plan(flows))) bytes += link.bytes;
  EXPECT_NEAR(bytes, 3 * 2 * 2 / 3.0 * (4 + 3) * 2, 1e-6);
}

TEST(LinkTraffic, OfTeamsIsWhatMembersExchangeAndSumWithThoseOfTheirNumber) {
  Plan plan = make_plan({.shares = {{3, 1}},
                         .cuts = {},
                         .micro_batches = 5,
                         .elements = {12, 5},
                         .pieces = {{3, 1}}});
  BodyTensor h;  // 16 fp32 elements a sample: gathered forward, and divided backward
  h.name = "h";
  h.shape = {{0, 1}, {16, 0}};
  h.forms.resize(2);
  h.forms[0].lying = Lying::kPart;
  h.forms[0].division = 0;
  h.forms[1].lying = Lying::kCopySummed;
  h.forms[1].from = 0;
  BodyStep exchange;
  exchange.tensor = 2;
  exchange.form = 1;
  plan.bodies[0].tensors.push_back(h);
  plan.bodies[0].forward.push_back(exchange);
  plan.bodies[0].backward.push_back(exchange);
  // The first team has ranks 1 and 0, and three samples; the second ranks 3 and 2, and one.
  std::string text;
  for (const auto& [from, to, bytes, messages] : link_traffic(plan)) {
    text += fmt::format("{}>{}: {} in {}\n", from, to, bytes, messages);
  }
  EXPECT_EQ(text,
            "0>1: 960 in 10\n0>2: 64 in 4\n1>0: 960 in 10\n1>3: 112 in 4\n"
            "2>0: 64 in 4\n2>3: 320 in 10\n3>1: 112 in 4\n3>2: 320 in 10\n");
}

TEST(LinkTraffic, OfIdleRanksIsTheRingOfTheReport) {
  EXPECT_EQ(pairs_text(make_plan({{{4, 4}, {0}}, {}})), "0>1 1>0 1>2 2>0 ");
}

TEST(LinkTraffic, AreBothEndsOfACutWhoseGradientReturns) {
  EXPECT_EQ(pairs_text(make_plan({{{4}, {4}}, {{0, 1, {"a"}}}})), "0>1 1>0 ");
  EXPECT_EQ(pairs_text(make_plan({{{4}, {4}}, {{0, 1, {"!a"}}}})), "0>1 ");
  EXPECT_EQ(pairs_text(make_plan({{{2, 2}, {2, 2}}, {{0, 1, {"!a"}}}})),
            "0>1 0>2 1>0 1>3 2>3 3>2 ");
}

TEST(LinkTraffic, AreTheEndsOfAFlowsMessages) {
  Plan plan = make_plan({{{4, 4, 4, 4}}, {}, 1, Schedule::k1F1B, AllReduce::kFlow});
  plan.flows.resize(1);
  for (PlanBucket& bucket : plan.buckets) bucket.flow = 0;
  plan.flows[0].steps = {{false, {{0, 2, 0}}, {}}, {true, {{2, 0, 0}}, {}}};
  EXPECT_EQ(pairs_text(plan), "0>1 0>2 1>2 2>0 2>3 3>0 ");
}

class ProbeOver : public OverWorld {};

INSTANTIATE_TEST_SUITE_P(All, ProbeOver,
                         testing::Values(loopback_world(), tcp_world(), gloo_world()),
                         [](const auto& world) { return world.param.name; });

TEST_P(ProbeOver, EveryRankHasEveryRatherExactFigure) {
  const Plan plan = make_plan({{{2, 2}, {4}}, {{0, 1, {"a"}}}});
  std::vector<std::vector<LinkMeasurement>> by_rank(3);
  GetParam().run(3, [&](Transport& transport) {
    const auto delay = [](int from, int to, std::size_t bytes) {
      return 2e-3 + static_cast<double>(bytes) * (from == 1 && to == 2 ? 400e-9 : 100e-9);
    };
    SlowTransport slow(transport, {delay, {}});
    ASSERT_TRUE(agree_on_plan(plan, slow, kLimit).ok());
    auto links = probe_links(plan, slow, kLimit);
    ASSERT_TRUE(links.ok()) << links.status().message();
    by_rank[static_cast<std::size_t>(transport.rank())] = *links;
  });
  ASSERT_EQ(by_rank[0].size(), 6U);
  for (std::size_t i = 0; i < by_rank[0].size(); ++i) {
    const LinkMeasurement& link = by_rank[0][i];
    // Header and payload are late by 2 ms each; the wide bounds are for a busy machine.
    const double rate = link.from == 1 && link.to == 2 ? 400e-9 : 100e-9;
    EXPECT_GT(link.seconds_per_byte, 0.9 * rate) << link.from << " " << link.to;
    EXPECT_LT(link.seconds_per_byte, 10 * rate) << link.from << " " << link.to;
    EXPECT_GT(link.latency_seconds, 1.9e-3);
    EXPECT_LT(link.latency_seconds, 100e-3);
    for (const auto& other : by_rank) {
      EXPECT_EQ(other[i].from, link.from);
      EXPECT_EQ(other[i].to, link.to);
      EXPECT_EQ(other[i].seconds_per_byte, link.seconds_per_byte);
      EXPECT_EQ(other[i].latency_seconds, link.latency_seconds);
    }
  }
}

TEST_P(ProbeOver, AGlanceSeesThatOneLinkIsFaster) {
  const Plan plan = make_plan({{{4, 4, 4}}, {}});
  GetParam().run(3, [&](Transport& transport) {
    const auto delay = [](int, int, std::size_t bytes) {
      return static_cast<double>(bytes) * 1e-7;
    };
    SlowTransport slow(transport, {delay, {}});
    ASSERT_TRUE(agree_on_plan(plan, slow, kLimit).ok());
    const std::vector<LinkMeasurement> was = {{1, 2, 2e-6, 1e-3}, {2, 0, 1e-7, 1e-3}};
    // Other work may hold up any one glance. All ranks have the same figures.
    std::string seen;
    for (int glance = 0; glance < 10; ++glance) {
      const auto links = probe_links(plan, slow, kLimit, was);
      ASSERT_TRUE(links.ok()) << links.status().message();
      ASSERT_EQ(links->size(), 2U);
      EXPECT_EQ((*links)[0].to, 2);
      const double faster = (*links)[0].seconds_per_byte, same = (*links)[1].seconds_per_byte;
      if (faster < 1e-6 && same > 0.9e-7) return;  // 16 KiB take 1.6 ms, not 33
      seen += fmt::format("{} and {}; ", faster, same);
    }
    FAIL() << seen;
  });
}

TEST_P(ProbeOver, WorksAtFullSpeedAndTwice) {
  const Plan plan = make_plan({{{4, 4, 4, 4}}, {}});
  GetParam().run(4, [&](Transport& transport) {
    ASSERT_TRUE(agree_on_plan(plan, transport, kLimit).ok());
    for (int time = 0; time < 2; ++time) {
      const auto links = probe_links(plan, transport, kLimit);
      ASSERT_TRUE(links.ok()) << links.status().message();
      ASSERT_EQ(links->size(), 4U);
      for (const LinkMeasurement& link : *links) {
        EXPECT_GT(link.seconds_per_byte, 0);
        EXPECT_GT(link.latency_seconds, 0);
      }
    }
  });
}

TEST_P(ProbeOver, AFailureNamesTheLink) {
  const Plan plan = make_plan({{{4, 4}}, {}});
  GetParam().run(2, [&](Transport& transport) {
    ASSERT_TRUE(agree_on_plan(plan, transport, kLimit).ok());
    if (transport.rank() == 1) return;  // leaves
    const auto links = probe_links(plan, transport, std::chrono::milliseconds(2000));
    ASSERT_FALSE(links.ok());
    EXPECT_THAT(links.status().message(), HasSubstr("probe of the link from rank 0 to rank 1: "));
  });
}

TEST(ProbeLinks, OfOneRankAreNone) {
  loopback_world().run(1, [](Transport& transport) {
    const auto links = probe_links(make_plan({{{4}}, {}}), transport, kLimit);
    ASSERT_TRUE(links.ok());
    EXPECT_TRUE(links->empty());
  });
}

std::string changes_text(const std::vector<LinkMeasurement>& before,
                         const std::vector<LinkMeasurement>& now) {
  const Plan plan = make_plan({{{4, 4}}, {}});
  std::string text;
  for (const LinkChange& change : changed_links(before, now)) {
    text += describe(plan, change) + "\n";
  }
  return text;
}

TEST(ChangedLinks, AreSlowerOrFasterByMoreThanTheTolerance) {
  EXPECT_EQ(changes_text({{0, 1, 1e-9, 50e-6}, {1, 0, 1e-9, 50e-6}},
                         {{0, 1, 4e-9, 50e-6}, {1, 0, 1.4e-9, 50e-6}}),
            "link host0/0 -> host0/1: 4 times slower\n");
  EXPECT_EQ(changes_text({{0, 1, 4e-9, 50e-6}}, {{0, 1, 1e-9, 50e-6}}),
            "link host0/0 -> host0/1: 4 times faster\n");
}

TEST(ChangedLinks, LatencyCountsWhereItCanBeNoticed) {
  EXPECT_EQ(changes_text({{0, 1, 1e-9, 50e-6}}, {{0, 1, 1e-9, 200e-6}}), "");
  EXPECT_EQ(changes_text({{0, 1, 1e-9, 1e-3}}, {{0, 1, 1.1e-9, 20e-3}}),
            "link host0/0 -> host0/1: 1.1 times slower, latency 20 times longer\n");
}

TEST(ChangedLinks, WhatWasNotProbedBeforeIsNoChange) {
  EXPECT_EQ(changes_text({{1, 0, 1e-9, 50e-6}}, {{0, 1, 4e-9, 50e-6}}), "");
}

}  // namespace
}  // namespace agpcs
