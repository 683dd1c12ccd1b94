// SPDX-License-Identifier: Apache-2.0
// What every transport promises of all-reduces along flows.
#include "tests/runtime/transport/conformance.h"
#include "tests/support/fork_shared.h"
#include "tests/support/plan_flows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

class TransportConformanceFlows : public TransportConformance {};

INSTANTIATE_TEST_SUITE_P(All, TransportConformanceFlows, ::testing::ValuesIn(worlds()),
                         [](const auto& world) { return world.param.name; });

// The flows that tests run, over any number of ranks: each in both orders, one after the other.
std::vector<PlanFlow> flows_among(int ranks) {
  std::vector<PlanFlow> flows = {testing::ring_flow(ranks), testing::ring_flow(ranks, 2),
                                 testing::star_flow(ranks)};
  for (const int sub_chunks : {1, 3}) {
    flows.push_back(testing::random_flow(ranks, sub_chunks, Rng(41)));
  }
  std::vector<PlanFlow> ordered;
  for (const PlanFlow& flow : flows) {
    ordered.push_back(flow);
    ordered.push_back(testing::in_rounds(flow, ranks, Rng(43)));
  }
  ordered.push_back(flows.back());
  ordered.back().order = FlowOrder::kRounds;  // without waits
  return ordered;
}

void open_flows(Transport& transport, int group, const std::vector<PlanFlow>& flows) {
  for (std::size_t f = 0; f < flows.size(); ++f) {
    expect_ok(transport.open_flow(static_cast<int>(f), group, flows[f]));
  }
}

TEST_P(TransportConformanceFlows, FlowsSumEveryTypeAndSize) {
  for (const int ranks : {2, 3, 5}) {
    const std::vector<PlanFlow> flows = flows_among(ranks);
    run(ranks, [&](Transport& transport) {
      expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
      open_flows(transport, 0, flows);
      for (std::size_t f = 0; f < flows.size(); ++f) {
        for (const std::size_t elements : {0, 1, 2, 3, 17, 1000, 70001}) {
          sums_all_types(transport, {AllReduce::kFlow, static_cast<int>(f)}, elements);
        }
      }
    });
  }
}

// Several segments a chunk, more of them than are asked for ahead.
TEST_P(TransportConformanceFlows, FlowsSumLargeBuffers) {
  const std::vector<PlanFlow> flows = flows_among(3);
  run(3, [&](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
    open_flows(transport, 0, flows);
    for (const std::size_t f : {0, 1, 2, 3, 6, 7}) {
      sums_exactly<float>(
          transport, DType::kFp32, {AllReduce::kFlow, static_cast<int>(f)},
          [](int value) { return static_cast<float>(value); }, 9'000'001);
    }
  });
}

// The sums of fractions depend on the order in which they are added.
TEST_P(TransportConformanceFlows, AFlowLeavesTheSameBytesOnAllRanksEachTime) {
  const std::vector<PlanFlow> flows = flows_among(4);
  const auto value = [](std::size_t i, int rank) {
    return 1.F / static_cast<float>(3 * i + 7 * static_cast<std::size_t>(rank) + 1);
  };
  std::vector<float> by_receivers;
  for (std::size_t f = 0; f < flows.size(); ++f) {
    std::vector<std::vector<float>> results(8), by_transport(4);
    run(4, [&](Transport& transport) {
      expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
      open_flows(transport, 0, flows);
      const auto reduced = [&](Way way) {
        std::vector<float> values(10007);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(i, transport.rank());
        wait_for(transport, Stream::kCollective,
                 way.reduce(transport, buffer_of(values, DType::kFp32)));
        return values;
      };
      const auto rank = static_cast<std::size_t>(transport.rank());
      const Way flow = {AllReduce::kFlow, static_cast<int>(f)};
      results[rank] = reduced(flow);
      by_transport[rank] = reduced({AllReduce::kRing});
      results[4 + rank] = reduced(flow);
    });
    for (const auto& result : results) EXPECT_EQ(result, results[0]);
    // Nor does the order in which messages move change a byte.
    if (flows[f].order == FlowOrder::kReceivers) by_receivers = results[0];
    EXPECT_EQ(results[0], by_receivers);
    ASSERT_EQ(results[0].size(), by_transport[0].size());
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      ASSERT_NEAR(results[0][i], by_transport[0][i], 1e-6F * by_transport[0][i]);
    }
  }
}

TEST_P(TransportConformanceFlows, FlowsOfSeveralGroupsAlternateWithAlgorithms) {
  run(5, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), {0, 0, 1, 1, 1}));
    open_flows(transport, 0, flows_among(5));
    for (int round = 0; round < 3; ++round) {
      sums_all_types(transport, {AllReduce::kFlow, round}, 40001);
      sums_all_types(transport, {kAllReduces[static_cast<std::size_t>(round)]}, 40001);
    }
    const std::vector<int> half = transport.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3, 4};
    const int group = transport.rank() < 2 ? 1 : 2;
    expect_ok(transport.open_group(group, half, one_host(transport)));
    expect_ok(transport.open_flow(100, group, testing::star_flow(static_cast<int>(half.size()))));
    std::vector<std::int64_t> in_half(100, transport.rank()), in_all(100, transport.rank());
    const auto first = transport.all_reduce_flow(buffer_of(in_half, DType::kInt64), 100);
    const auto second = transport.all_reduce_flow(buffer_of(in_all, DType::kInt64), 2);
    ASSERT_TRUE(first.ok());
    wait_for(transport, Stream::kCollective, second);
    EXPECT_EQ(in_half, std::vector<std::int64_t>(100, transport.rank() < 2 ? 1 : 9));
    EXPECT_EQ(in_all, std::vector<std::int64_t>(100, 10));
  });
}

TEST_P(TransportConformanceFlows, ATimeoutOfAFlowNamesTheRanksOfIt) {
  run(3, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
    open_flows(transport, 0, {testing::star_flow(3)});
    std::vector<int> values(1600);
    if (transport.rank() == 1) return stay_until_failure(transport, 0);
    const auto ticket = transport.all_reduce_flow(buffer_of(values, DType::kInt32), 0);
    ASSERT_TRUE(ticket.ok());
    const Status status = transport.wait(Stream::kCollective, *ticket,
                                         transport.rank() == 0 ? milliseconds(100) : kLong);
    EXPECT_EQ(status.code(), transport.rank() == 0 ? StatusCode::kTimeout : StatusCode::kPeerFailed)
        << status.message();
    EXPECT_THAT(status.message(), HasSubstr("all_reduce of 6400 bytes over ranks 0,1,2, waiting"));
    EXPECT_THAT(status.message(), HasSubstr("timed out after 100 ms"));
    transport.abort(status);
  });
}

TEST_P(TransportConformanceFlows, APeerThatLeavesAFlowIsNoticed) {
  run(4, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
    open_flows(transport, 0, {testing::star_flow(4)});
    if (transport.rank() == 3) return;  // leaves
    std::vector<int> values(3'000'000);
    const auto ticket = transport.all_reduce_flow(buffer_of(values, DType::kInt32), 0);
    const Status status =
        ticket.ok() ? transport.wait(Stream::kCollective, *ticket, kLong) : ticket.status();
    EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
    transport.abort(status);
  });
}

TEST_P(TransportConformanceFlows, AnAbortEndsAFlow) {
  const ForkShared<SharedBarrier> opened(3);
  run(3, [&](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
    open_flows(transport, 0, {testing::star_flow(3)});
    opened->meet();
    if (transport.rank() != 0) return stay_until_failure(transport, 3 - transport.rank());
    std::vector<int> values(3'000'000);
    const auto ticket = transport.all_reduce_flow(buffer_of(values, DType::kInt32), 0);
    ASSERT_TRUE(ticket.ok());
    std::thread waiting([&] {
      const Status status = transport.wait(Stream::kCollective, *ticket, kLong);
      EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.message();
      EXPECT_THAT(status.message(), HasSubstr("the user pressed Ctrl-C"));
    });
    transport.abort({StatusCode::kCancelled, "the user pressed Ctrl-C"});
    waiting.join();
  });
}

TEST_P(TransportConformanceFlows, RefusesFlowsThatCannotBe) {
  run(2, [](Transport& transport) {
    std::vector<int> values(4);
    const Buffer buffer = buffer_of(values, DType::kInt32);
    const PlanFlow flow = testing::ring_flow(2);
    EXPECT_EQ(transport.open_flow(0, 0, flow).message(), "group 0 is not open");
    expect_ok(transport.open_group(0, {0, 1}, {0, 0}));
    EXPECT_EQ(transport.all_reduce_flow(buffer, 0).status().message(), "flow 0 is not open");
    EXPECT_EQ(transport.open_flow(-1, 0, flow).message(), "flow -1 is not within 0 and 65535");
    EXPECT_THAT(transport.open_flow(0, 0, testing::ring_flow(3)).message(),
                HasSubstr("step 1: chunk 2 from member 0 to member 1 of 2"));
    expect_ok(transport.open_flow(0, 0, flow));
    EXPECT_EQ(transport.open_flow(0, 0, flow).message(), "flow 0 is open already");
    EXPECT_EQ(transport.all_reduce(buffer, 0, AllReduce::kFlow).status().message(),
              "all_reduce: a flow is opened first, and named to all_reduce_flow");
    EXPECT_EQ(
        transport.all_reduce_flow({values.data(), 4, DType::kBool, false}, 0).status().message(),
        "all_reduce: no sum of bool values");
  });
}

}  // namespace
}  // namespace agpcs
