// SPDX-License-Identifier: Apache-2.0
// What was measured of devices, and what it does to a step.
#include "ir/base/at.h"
#include "tests/cost_model/step/steps.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>

namespace agpcs {
namespace {

using testing::chain_of;
using testing::event_of;
using testing::kInstant;
using testing::kUnit;
using testing::Step;

InstructionId forward(int mb) { return {Opcode::kForward, -1, mb}; }
InstructionId backward(int mb) { return {Opcode::kBackward, -1, mb}; }
constexpr InstructionId kUpdate = {Opcode::kUpdate, -1, -1};
constexpr InstructionId kReport = {Opcode::kReport, -1, -1};

double length(const TimelineEvent& event) { return event.end - event.start; }

/// Two stages of one operator each, one micro-batch, on devices with ports of 1 GB/s.
Step two_stages(int micro_batches = 1) {
  return {chain_of(2), kUnit + std::string("host a unit 2 bandwidth=1e9 latency=2e-6\n"),
          fmt::format("micro-batches {}\nstage a/0=8 : h1\nstage a/1=8 : h2\n", micro_batches),
          8 * micro_batches};
}

/// Two ranks whose first bucket is reduced while the second half of the backward pass runs.
Step overlapping() {
  return {chain_of(4), kUnit + std::string("host a unit 2 bandwidth=1e12 latency=0\n"),
          "stage a/0=400 a/1=400 : *\nbucket 0 ring w4 w3\nbucket 0 ring w2 w1\n", 800};
}
constexpr double kBucketBytes = 2 * 64 * 64 * 4;  // on each hop of a ring of two: the whole bucket
constexpr InstructionId kFirstBucket = {Opcode::kAllReduce, 0, -1};

TEST(Overhead, IsNotOfComputations) {
  Step step(chain_of(2), kUnit + std::string("host a unit 1") + kInstant,
            "micro-batches 3\nstage a/0=8 : *\n", 24);
  const Estimate plain = step.simulate();
  step.cluster.kinds[0].message_overhead = 1e-3;
  const Estimate slower = step.simulate();
  // Only the report is a message: of one rank, beside the update.
  EXPECT_EQ(slower.devices[0].compute_seconds, plain.devices[0].compute_seconds);
  EXPECT_NEAR(length(event_of(slower, 0, kReport)), 1e-3, 1e-15);
}

TEST(Overhead, OfTheSlowestEndComesOnceToATransfer) {
  Step step = two_stages();
  const double plain = length(event_of(step.simulate(), 0, {Opcode::kSend, 0, 0}));
  step.cluster.kinds.push_back(step.cluster.kinds[0]);
  step.cluster.kinds[0].message_overhead = 1e-3;
  step.cluster.kinds[1].message_overhead = 3e-3;
  step.cluster.devices[1].kind = 1;
  step.costs =
      std::make_unique<CostTable>(*CostTable::make(step.graph, step.cluster, step.plan.training));
  const Estimate slower = step.simulate();
  EXPECT_NEAR(length(event_of(slower, 0, {Opcode::kSend, 0, 0})), plain + 3e-3, 1e-15);
  EXPECT_NEAR(length(event_of(slower, 1, {Opcode::kSendGradient, 0, 0})), plain + 3e-3, 1e-15);
}

TEST(Overhead, OfPostingAMessageComesToTheNextComputationOfEitherEnd) {
  Step step = two_stages();
  const Estimate plain = step.simulate();
  constexpr double kPost = 1e-3;
  step.cluster.kinds[0].message_compute = kPost;
  const Estimate slower = step.simulate();
  // The first rank sends the activation after its forward pass, and waits for the gradient before
  // its backward pass. The second sends that while it already updates, and nothing comes after.
  const auto longer = [&](int rank, InstructionId id) {
    return length(event_of(slower, rank, id)) - length(event_of(plain, rank, id));
  };
  EXPECT_NEAR(longer(0, forward(0)) + longer(0, backward(0)) + longer(0, kUpdate), 2 * kPost,
              1e-15);
  EXPECT_NEAR(longer(1, forward(0)), kPost, 1e-15);
  EXPECT_NEAR(longer(1, backward(0)) + longer(1, kUpdate), 0, 1e-15);
  for (const int rank : {0, 1}) {  // posting is not computing
    EXPECT_NEAR(slower.devices[at(rank)].compute_seconds, plain.devices[at(rank)].compute_seconds,
                1e-15);
  }
}

TEST(Overhead, BeginsTheStepOfEveryRankOnce) {
  Step step = two_stages(2);
  const Estimate plain = step.simulate();
  step.cluster.kinds[0].fit.begin_per_element = 1e-9;
  step.costs =
      std::make_unique<CostTable>(*CostTable::make(step.graph, step.cluster, step.plan.training));
  const Estimate slower = step.simulate();
  const double begin = 1e-9 * 64 * 64;
  for (const int rank : {0, 1}) {
    EXPECT_NEAR(length(event_of(slower, rank, forward(0))),
                length(event_of(plain, rank, forward(0))) + begin, 1e-15);
    EXPECT_NEAR(length(event_of(slower, rank, forward(1))),
                length(event_of(plain, rank, forward(1))), 1e-15);
  }
}

TEST(Overlap, TakesComputingTimeForEveryByteThatMoves) {
  Step step = overlapping();
  const Estimate plain = step.simulate();
  ASSERT_LT(event_of(plain, 0, kFirstBucket).end, event_of(plain, 0, backward(0)).end);
  step.cluster.kinds[0].overlap.compute_seconds_per_byte = 1e-13;
  const Estimate slower = step.simulate();
  // The bucket goes out and comes in while the device computes; the second comes after the pass.
  EXPECT_NEAR(length(event_of(slower, 0, backward(0))),
              length(event_of(plain, 0, backward(0))) + 2 * kBucketBytes * 1e-13, 1e-16);
  EXPECT_NEAR(length(event_of(slower, 0, kFirstBucket)), length(event_of(plain, 0, kFirstBucket)),
              1e-16);
}

TEST(Overlap, LosesTheSameTimeHoweverFastTheBytesCome) {
  for (const double bandwidth : {4e11, 1e12, 3e12}) {
    Step step = overlapping();
    for (Link& link : step.cluster.links) link.bandwidth = bandwidth;
    const double plain = length(event_of(step.simulate(), 0, backward(0)));
    step.cluster.kinds[0].overlap.compute_seconds_per_byte = 1e-13;
    EXPECT_NEAR(length(event_of(step.simulate(), 0, backward(0))) - plain, 2 * kBucketBytes * 1e-13,
                1e-16)
        << bandwidth;
  }
}

TEST(Overlap, StopsComputingWhileBytesTakeAllOfIt) {
  Step step = overlapping();
  const Estimate plain = step.simulate();
  step.cluster.kinds[0].overlap.compute_seconds_per_byte = 1e-9;  // 2e12 B/s cost 2000 s a second
  const Estimate slower = step.simulate();
  EXPECT_NEAR(length(event_of(slower, 0, backward(0))),
              length(event_of(plain, 0, backward(0))) + length(event_of(plain, 0, kFirstBucket)),
              1e-16);
  EXPECT_EQ(slower.timeline.size(), plain.timeline.size());
}

TEST(Overlap, MovesTheGradientsOfTheSlowedPass) {
  Step step(chain_of(4), kUnit + std::string("host a unit 2 bandwidth=1e12 latency=0\n"),
            "stage a/0=400 a/1=400 : *\nbucket 0 ring w4\nbucket 0 ring w3 w2\nbucket 0 ring w1\n",
            800);
  const Estimate plain = step.simulate();
  step.cluster.kinds[0].overlap.compute_seconds_per_byte = 1e-13;
  const Estimate slower = step.simulate();
  const InstructionId second = {Opcode::kAllReduce, 1, -1};
  EXPECT_NEAR(event_of(slower, 0, second).start,
              event_of(plain, 0, second).start + kBucketBytes * 1e-13, 1e-16);
}

TEST(Overlap, ReducesThePortsOfADeviceThatComputes) {
  Step step = overlapping();
  const Estimate plain = step.simulate();
  step.cluster.kinds[0].overlap.communication_factor = 0.5;
  const Estimate slower = step.simulate();
  ASSERT_LT(event_of(slower, 0, kFirstBucket).end, event_of(slower, 0, backward(0)).end);
  EXPECT_NEAR(length(event_of(slower, 0, kFirstBucket)),
              2 * length(event_of(plain, 0, kFirstBucket)), 1e-16);
  // Nobody computes during the second.
  const InstructionId second = {Opcode::kAllReduce, 1, -1};
  EXPECT_NEAR(length(event_of(slower, 0, second)), length(event_of(plain, 0, second)), 1e-16);
}

TEST(Overlap, ReducesWhatADeviceThatComputesHasOfItsHostsNic) {
  // Ports of 1e15 B/s behind NICs of 1e12: a hundredth of a port is still more than the NIC.
  for (const char* algorithm : {"ring", "tree"}) {
    Step step(
        chain_of(4),
        kUnit + std::string("host a unit 1 bandwidth=1e15 latency=0 nic=1e12 nic-latency=0\n"
                            "host b unit 1 bandwidth=1e15 latency=0 nic=1e12 nic-latency=0\n"),
        fmt::format("stage a/0=4000 b/0=4000 : *\nbucket 0 {0} w4 w3\nbucket 0 {0} w2 w1\n",
                    algorithm),
        8000);
    const double plain = length(event_of(step.simulate(), 0, kFirstBucket));
    step.cluster.kinds[0].overlap.communication_factor = 0.01;
    const Estimate slower = step.simulate();
    ASSERT_LT(event_of(slower, 0, kFirstBucket).end, event_of(slower, 0, backward(0)).end);
    EXPECT_NEAR(length(event_of(slower, 0, kFirstBucket)) / plain, 100, 1e-9) << algorithm;
  }
}

TEST(Overlap, GivesAFlowItsWholePortBackWhenTheComputationEnds) {
  // 16 KiB at 1 GB/s take longer than the rest of the pass.
  Step step(chain_of(2), kUnit + std::string("host a unit 2 bandwidth=1e9 latency=0\n"),
            "stage a/0=400 a/1=400 : *\nbucket 0 ring w2\nbucket 0 ring w1\n", 800);
  step.cluster.kinds[0].overlap.communication_factor = 0.25;
  const Estimate estimate = step.simulate();
  const TimelineEvent reduced = event_of(estimate, 0, kFirstBucket);
  const double shared = event_of(estimate, 0, backward(0)).end - reduced.start;
  const double bytes = 64 * 64 * 4;
  ASSERT_GT(length(reduced), shared);
  EXPECT_NEAR(length(reduced), shared + (bytes - 0.25e9 * shared) / 1e9, 1e-15);
  EXPECT_EQ(event_of(estimate, 0, kUpdate).start,
            event_of(estimate, 0, {Opcode::kAllReduce, 1, -1}).end);
}

TEST(Overlap, OfOneKindLeavesTheOthersAlone) {
  Step step = overlapping();
  step.cluster.kinds.push_back(step.cluster.kinds[0]);
  step.cluster.devices[1].kind = 1;
  step.costs =
      std::make_unique<CostTable>(*CostTable::make(step.graph, step.cluster, step.plan.training));
  const Estimate plain = step.simulate();
  step.cluster.kinds[1].overlap.compute_seconds_per_byte = 1e-13;
  const Estimate slower = step.simulate();
  const auto pass = [](const Estimate& estimate, int rank) {
    return length(event_of(estimate, rank, backward(0)));
  };
  EXPECT_EQ(pass(slower, 0), pass(plain, 0));
  EXPECT_GT(pass(slower, 1), pass(plain, 1));
}

}  // namespace
}  // namespace agpcs
