// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/plans.h"
#include "tests/runtime/reduce/reducers.h"
#include "tests/support/plan_flows.h"

#include <agpcs/gradient_reducer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

// Ranks that go in other orders, or wait for others, would wait for each other for ever.
TEST(PlannedReducer, OrdersAndWaitsOfFlowsThatDifferAreNamedOnEveryRank) {
  const auto refusal = [](const std::function<void(PlanFlow&)>& of_rank_1) {
    std::vector<std::string> said(2);
    loopback_world().run(2, [&](Transport& transport) {
      GradientSet declared = set_of({4, 4});
      declared.groups[0].algorithm = AllReduce::kFlow;
      declared.groups[0].flow = 0;
      declared.flows = {testing::ring_flow(2)};
      declared.flows[0].order = FlowOrder::kRounds;
      if (transport.rank() == 1) of_rank_1(declared.flows[0]);
      const auto reducer = GradientReducer::create(declared, transport, options_of({}));
      said[static_cast<std::size_t>(transport.rank())] = reducer.status().message();
    });
    EXPECT_EQ(said[0], said[1]);
    return said[0];
  };
  const std::string plain = "rank 0 'flow of 1 sub-chunks by rounds + 0>1:1 1>0:0 | 0>1:0 1>0:1'";
  EXPECT_EQ(refusal([](PlanFlow& flow) { flow.order = FlowOrder::kReceivers; }),
            "rank 1 has 'flow of 1 sub-chunks by receivers + 0>1:1 1>0:0 | 0>1:0 1>0:1', " + plain);
  EXPECT_EQ(
      refusal([](PlanFlow& flow) {
        flow.steps[1].after = {{0, 1}};
      }),
      "rank 1 has 'flow of 1 sub-chunks by rounds + 0>1:1 1>0:0 | 0>1 0>1:0 1>0:1', " + plain);
}

TEST(PlannedReducer, NeedsAGroupForEachGradient) {
  loopback_world().run(1, [](Transport& transport) {
    GradientSet declared = set_of({4, 4}, 1);
    declared.groups.pop_back();
    const auto reducer = GradientReducer::create(declared, transport, options_of({}));
    EXPECT_THAT(reducer.status().message(), HasSubstr("gradient 'g1' is in no group"));
  });
}

TEST(PlannedReducer, KeepsThePlansOrderAndSaysWhatThatCost) {
  const GradientSet declared = set_of({4, 4, 4, 4});
  loopback_world().run(2, [&](Transport& transport) {
    auto reducer = reducer_of(declared, transport, options_of({}));
    Gradients gradients(declared, transport.rank());
    for (const int g : {2, 3, 0}) expect_ok(reducer->submit(g, gradients.buffer(g)));
    EXPECT_EQ(reducer->stats().all_reduces, 0);
    expect_ok(reducer->submit(1, gradients.buffer(1)));
    expect_ok(reducer->wait_all());
    const auto delays = reducer->delays();
    ASSERT_EQ(delays.size(), 2U);
    EXPECT_EQ(delays[0], 0);
    EXPECT_GT(delays[1], 0);
    EXPECT_EQ(reducer->stats().delay_ns, delays[1]);
  });
}

TEST(PlannedReducer, GradientsMadeInTheirPlacesAreNotCopied) {
  const GradientSet declared = set_of({4, 100, 7});
  loopback_world().run(2, [&](Transport& transport) {
    auto reducer = reducer_of(declared, transport, options_of({}));
    for (int step = 0; step < 2; ++step) {
      std::vector<Buffer> places;
      for (const int g : {0, 1, 2}) {
        auto place = reducer->place_of(g);
        ASSERT_TRUE(place.ok()) << place.status().message();
        places.push_back(*place);
        std::fill_n(static_cast<float*>(place->data), place->bytes / sizeof(float), g + 1.F);
        expect_ok(reducer->submit(g, *place));
      }
      expect_ok(reducer->wait_all());
      for (const int g : {0, 1, 2}) {
        const auto* sums = static_cast<const float*>(places[static_cast<std::size_t>(g)].data);
        EXPECT_EQ(sums[0], 2 * (g + 1.F));
      }
    }
    EXPECT_EQ(reducer->stats().copied_bytes, 0);
  });
}

// Some ranks make their gradients in place, others do not: sums are those of whole groups.
TEST(PlannedReducer, ARingReducesGradientsWhereTheyLie) {
  const GradientSet declared = set_of({10, 500, 0, 600, 10}, 5);
  loopback_world().run(3, [&](Transport& transport) {
    auto reducer = reducer_of(declared, transport, options_of({}));
    Gradients gradients(declared, transport.rank());
    for (int step = 0; step < 3; ++step) {
      gradients.fill(step);
      for (const int g : {3, 1, 0, 4, 2}) {
        if (transport.rank() != 1) {
          expect_ok(reducer->submit(g, gradients.buffer(g)));
          continue;
        }
        const Buffer place = *reducer->place_of(g), own = gradients.buffer(g);
        std::memcpy(place.data, own.data, own.bytes);
        expect_ok(reducer->submit(g, place));
      }
      expect_ok(reducer->wait_all());
      for (int g = 0; g < 5 && transport.rank() == 1; ++g) {
        const Buffer place = *reducer->place_of(g), own = gradients.buffer(g);
        std::memcpy(own.data, place.data, own.bytes);
      }
      gradients.expect_sums(3, step);
    }
    EXPECT_EQ(reducer->stats().all_reduces, 3);
    EXPECT_EQ(reducer->stats().copied_bytes, 0);
  });
}

TEST(PlannedReducer, ATreeReducesCopiesOfGradients) {
  GradientSet declared = set_of({10, 500, 7}, 2);
  for (GradientGroup& group : declared.groups) group.algorithm = AllReduce::kTree;
  loopback_world().run(3, [&](Transport& transport) {
    auto reducer = reducer_of(declared, transport, options_of({}));
    Gradients gradients(declared, transport.rank());
    for (int step = 0; step < 3; ++step) {
      gradients.fill(step);
      for (const int g : {2, 1, 0}) expect_ok(reducer->submit(g, gradients.buffer(g)));
      expect_ok(reducer->wait_all());
      gradients.expect_sums(3, step);
    }
    // The second group has one gradient, which stays where it is.
    EXPECT_EQ(reducer->stats().copied_bytes, std::int64_t{3} * (10 + 500) * 4);
  });
}

// The same buckets in the same order, by the same algorithms, as the replayer of the plan.
TEST(PlannedReducer, TakesGroupsOrderAndAlgorithmsFromAPlan) {
  for (const AllReduce algorithm : {AllReduce::kTree, AllReduce::kFlow}) {
    const Plan plan = make_plan({{{2, 1, 4, 1}}, {}, 1, Schedule::k1F1B, algorithm});
    loopback_world().run(4, [&](Transport& transport) {
      const GradientSet declared = *gradients_of(plan, transport.rank());
      ASSERT_EQ(declared.groups.size(), plan.buckets.size());
      auto reducer = reducer_of(declared, transport, options_of({}));
      std::vector<std::vector<double>> values;
      for (const Gradient& gradient : declared.gradients) {
        values.emplace_back(static_cast<std::size_t>(gradient.elements), transport.rank() + 1.0);
      }
      for (std::size_t g = values.size(); g-- > 0;) {
        expect_ok(reducer->submit(static_cast<int>(g), buffer_of(values[g], DType::kFp64)));
      }
      expect_ok(reducer->wait_all());
      for (const auto& sums : values) EXPECT_EQ(sums, std::vector<double>(sums.size(), 10.0));
    });
  }
}

TEST(PlannedReducer, TheReplicasOfAStageReduceAmongThemselves) {
  const Plan plan = make_plan({{{3, 1}, {1, 3}}, {{0, 1, {"a"}}}, 1});
  loopback_world().run(4, [&](Transport& transport) {
    ReducerOptions options = options_of({});
    options.group = plan.stage_of_rank(transport.rank());
    const GradientSet declared = *gradients_of(plan, transport.rank());
    auto reducer = reducer_of(declared, transport, options);
    for (std::size_t g = 0; g < declared.gradients.size(); ++g) {
      const auto place = reducer->place_of(static_cast<int>(g));
      ASSERT_TRUE(place.ok());
      auto* values = static_cast<double*>(place->data);
      std::fill_n(values, declared.gradients[g].elements, transport.rank());
      expect_ok(reducer->submit(static_cast<int>(g), *place));
    }
    expect_ok(reducer->wait_all());
    const auto place = reducer->place_of(0);
    EXPECT_EQ(*static_cast<const double*>(place->data), transport.rank() < 2 ? 1 : 5);
  });
}

TEST(PlannedReducer, AStageWhoseStateIsInHostsIsRefusedByItsName) {
  Plan plan = make_plan({.shares = {{4}, {4}}, .cuts = {{0, 1, {"a"}}}});
  plan.stages[1].state_in_host = true;
  EXPECT_EQ(gradients_of(plan, 1).status().message(),
            "stage s1 keeps the optimizer's state in the memory of hosts, and a reducer leaves "
            "updates to its caller\n"
            "  hint: a plan made with --without offload, or agpcs-run");
  EXPECT_TRUE(gradients_of(plan, 0).ok()) << "stage s0 keeps it on its devices";
}

TEST(PlannedReducer, APlanWhoseStagesShareABucketIsRefusedByItsName) {
  const Plan plan = make_plan(
      {.shares = {{4}, {4}, {4}}, .cuts = {{0, 1, {"a"}}, {1, 2, {"b"}}}, .shared = {{0, 2}}});
  EXPECT_EQ(gradients_of(plan, 2).status().message(),
            "bucket b6 ('shared6') is summed over the ranks of stages s0 and s2, and a reducer "
            "sums over those of one stage\n"
            "  hint: a plan whose stages share no parameters, or agpcs-run");
  EXPECT_TRUE(gradients_of(plan, 1).ok()) << "stage s1 shares nothing";
}

}  // namespace
}  // namespace agpcs
