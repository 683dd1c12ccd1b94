// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/simulator.h"

#include "cost_model/network/link_model.h"
#include "tests/cost_model/step/steps.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace agpcs {
namespace {

using testing::chain_of;
using ::testing::DoubleNear;
using testing::event_of;
using testing::kInstant;
using testing::kUnit;
using testing::pipeline;
using testing::Step;

InstructionId forward(int mb) { return {Opcode::kForward, -1, mb}; }
InstructionId backward(int mb) { return {Opcode::kBackward, -1, mb}; }
InstructionId send(int cut, int mb) { return {Opcode::kSend, cut, mb}; }
InstructionId recv(int cut, int mb) { return {Opcode::kRecv, cut, mb}; }
InstructionId all_reduce_of(int bucket) { return {Opcode::kAllReduce, bucket, -1}; }
constexpr InstructionId kUpdate = {Opcode::kUpdate, -1, -1};

double length(const TimelineEvent& event) { return event.end - event.start; }

TEST(Simulator, OneDeviceComputesAllMicroBatchesOneAfterTheOther) {
  const Step step(chain_of(3), kUnit + std::string("host a unit 1") + kInstant,
                  "micro-batches 4\nstage a/0=8 : *\n", 32);
  const OpSeconds op = step.seconds(8);
  const Estimate estimate = step.simulate();
  EXPECT_NEAR(estimate.step_seconds, 4 * 3 * (op.forward + op.backward), 1e-15);
  EXPECT_NEAR(estimate.samples_per_second, 32 / estimate.step_seconds, 1e-3);
  EXPECT_NEAR(estimate.devices[0].utilization, 1, 1e-12);
  EXPECT_EQ(estimate.bytes_sent, 0);
}

TEST(Simulator, UpdateFollowsTheLastBackward) {
  const Step step(
      chain_of(2),
      "kind unit fp32=1e12 bandwidth=1e9 launch=0\nhost a unit 1" + std::string(kInstant),
      "stage a/0=8 : *\n", 8);
  const Estimate estimate = step.simulate();
  const TimelineEvent update = event_of(estimate, 0, kUpdate);
  EXPECT_EQ(update.start, event_of(estimate, 0, backward(0)).end);
  EXPECT_DOUBLE_EQ(length(update), step.costs->update_seconds(0, 2 * 64 * 64, 2));
  EXPECT_EQ(update.end, estimate.step_seconds);
}

TEST(Simulator, RecomputationAddsAForwardToEveryBackward) {
  const std::string cluster = kUnit + std::string("host a unit 1") + kInstant;
  const Step step(chain_of(2), cluster, "micro-batches 2\nstage a/0=8 recompute : *\n", 16);
  const OpSeconds op = step.seconds(8);
  EXPECT_NEAR(step.simulate().step_seconds, 2 * 2 * (2 * op.forward + op.backward), 1e-15);
}

struct PipelineCase {
  int p, m;
  const char* schedule;
};

void PrintTo(const PipelineCase& of, std::ostream* out) {  // NOLINT: GoogleTest names it
  *out << of.schedule << '_' << of.p << "_stages_" << of.m << "_micro_batches";
}

class EqualPipeline : public ::testing::TestWithParam<PipelineCase> {};

// The makespan of a pipeline of p equal stages and m micro-batches (GPipe, Huang et al. 2019;
// PipeDream-flush, Narayanan et al. 2021).
TEST_P(EqualPipeline, TakesMPlusPMinusOneForwardsAndBackwards) {
  const auto [p, m, schedule] = GetParam();
  const Step step = pipeline(p, m, schedule, kInstant);
  const OpSeconds op = step.seconds(8);
  const Estimate estimate = step.simulate();
  EXPECT_NEAR(estimate.step_seconds, (m + p - 1) * (op.forward + op.backward), 1e-14);
  for (const DeviceEstimate& device : estimate.devices) {
    EXPECT_NEAR(device.utilization, static_cast<double>(m) / (m + p - 1), 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Simulator, EqualPipeline,
                         ::testing::Values(PipelineCase{1, 3, "1f1b"}, PipelineCase{2, 1, "1f1b"},
                                           PipelineCase{2, 4, "1f1b"}, PipelineCase{3, 8, "1f1b"},
                                           PipelineCase{4, 4, "1f1b"}, PipelineCase{4, 16, "1f1b"},
                                           PipelineCase{2, 4, "gpipe"},
                                           PipelineCase{4, 6, "gpipe"}),
                         ::testing::PrintToStringParamName());

// The bubble of a pipeline of p equal stages: 1F1B waits (p - 1)(F + B + W) seconds, ZB-H1 waits
// (p - 1)(F + B - W) (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, table 2). A matrix
// product takes F = B = W.
TEST(Simulator, WeightPassesThatArePutOffLeaveAThirdOfTheBubble) {
  for (const auto& [p, m] : {std::pair(2, 2), {2, 8}, {3, 9}, {4, 4}, {4, 16}, {8, 24}}) {
    const Step whole = pipeline(p, m, "1f1b", kInstant);
    const Step parted = pipeline(p, m, "zero-bubble", kInstant);
    const OpSeconds op = whole.seconds(8);
    ASSERT_DOUBLE_EQ(op.backward, 2 * op.forward);
    const double work = m * 3 * op.forward;
    EXPECT_NEAR((whole.simulate().step_seconds - work) / ((p - 1) * 3 * op.forward), 1, 1e-3);
    EXPECT_NEAR((parted.simulate().step_seconds - work) / ((p - 1) * op.forward), 1, 1e-3)
        << p << " stages, " << m << " micro-batches";
  }
}

TEST(Simulator, AllReducesOfPartedPassesBeginDuringTheLastWeightPass) {
  const Step step(chain_of(4), kUnit + std::string("host a unit 3 bandwidth=1e9 latency=1e-6\n"),
                  "micro-batches 4 zero-bubble\nstage a/0=4 a/1=4 : h1..h3\nstage a/2=8 : *\n"
                  "bucket 0 ring w3\nbucket 0 ring w2 w1\nbucket 1 ring w4\n",
                  32);
  const Estimate estimate = step.simulate();
  const TimelineEvent last = event_of(estimate, 0, {Opcode::kBackwardWeight, -1, 3});
  const OpSeconds op = step.seconds(4);
  EXPECT_NEAR(length(last), 3 * op.backward / 2, 1e-15);
  EXPECT_NEAR(length(event_of(estimate, 0, {Opcode::kBackwardInput, -1, 3})), 3 * op.backward / 2,
              1e-15);
  EXPECT_NEAR(event_of(estimate, 0, all_reduce_of(0)).start, last.start + op.backward / 2, 1e-15);
}

TEST(Simulator, SendAndReceiveTakeTheLoneTransferTogether) {
  const Step step = pipeline(2, 1, "1f1b", " bandwidth=1e9 latency=2e-6\n");
  const Estimate estimate = step.simulate();
  const TimelineEvent sent = event_of(estimate, 0, send(0, 0));
  const TimelineEvent received = event_of(estimate, 1, recv(0, 0));
  EXPECT_EQ(sent.start, event_of(estimate, 0, forward(0)).end);
  EXPECT_DOUBLE_EQ(length(sent), 4e-6 + 8 * 64 * 4 / 1e9);
  EXPECT_EQ(sent.start, received.start);
  EXPECT_EQ(sent.end, received.end);
  EXPECT_EQ(event_of(estimate, 1, forward(0)).start, received.end);
}

/// A stage of two replicas on host a feeds one of two replicas on host b.
constexpr const char* kTwoByTwo = "stage a/0=4 a/1=4 : h1\nstage b/0=4 b/1=4 : h2\n";

TEST(Simulator, TransfersThatShareANicHaveHalfItsBandwidthEach) {
  const std::string hosts = " unit 2 bandwidth=1e12 latency=0 nic=1e9 nic-latency=0\n";
  const Step step(chain_of(2), kUnit + ("host a" + hosts) + "host b" + hosts, kTwoByTwo, 8);
  const Estimate estimate = step.simulate();
  const double bytes = 4 * 64 * 4;
  for (const int rank : {0, 1}) {
    EXPECT_DOUBLE_EQ(length(event_of(estimate, rank, send(0, 0))), bytes / 0.5e9);
  }
}

TEST(Simulator, TransfersOnLinksOfTheirOwnDoNotDisturbEachOther) {
  const std::string hosts = " unit 2 bandwidth=1e9 latency=0 nic=1e12 nic-latency=0\n";
  const Step step(chain_of(2), kUnit + ("host a" + hosts) + "host b" + hosts, kTwoByTwo, 8);
  const Estimate estimate = step.simulate();
  for (const int rank : {0, 1}) {
    EXPECT_DOUBLE_EQ(length(event_of(estimate, rank, send(0, 0))), 4 * 64 * 4 / 1e9);
  }
}

TEST(Simulator, RowsGoToTheReplicasThatTakeThem) {
  const std::string hosts = " unit 2 bandwidth=1e9 latency=0\n";
  const Step step(chain_of(2), kUnit + ("host a" + hosts) + "host b" + hosts,
                  "stage a/0=6 a/1=2 : h1\nstage b/0=4 b/1=4 : h2\n", 8);
  const Estimate estimate = step.simulate();
  const std::int64_t row = 64 * 4, gradients = 64 * 64 * 4;
  const std::int64_t report = mean_report_bytes(4, 5);
  // Rank 0 sends 4 rows to rank 2 and 2 to rank 3; then its half of the ring; then reports.
  EXPECT_EQ(estimate.devices[0].bytes_sent, 6 * row + gradients + 2 * report);
  EXPECT_EQ(estimate.devices[1].bytes_sent, 2 * row + gradients + report);
}

TEST(Simulator, TwoRanksReduceByTheRingFormula) {
  const Step step(chain_of(2), kUnit + std::string("host a unit 2 bandwidth=1e9 latency=3e-6\n"),
                  "stage a/0=4 a/1=4 : *\n", 8);
  const Estimate estimate = step.simulate();
  const OpSeconds op = step.seconds(4);
  const double ring = 2 * 6e-6 + 2 * 64 * 64 * 4 / 1e9;
  const TimelineEvent reduced = event_of(estimate, 0, all_reduce_of(0));
  EXPECT_NEAR(reduced.start, 2 * (op.forward + op.backward), 1e-15);
  EXPECT_NEAR(length(reduced), ring, 1e-15);
  EXPECT_EQ(event_of(estimate, 0, kUpdate).start, reduced.end);
}

TEST(Simulator, AllReduceOverlapsWithTheRestOfTheBackwardPass) {
  const Step step(chain_of(4), kUnit + std::string("host a unit 2 bandwidth=1e12 latency=0\n"),
                  "stage a/0=400 a/1=400 : *\nbucket 0 ring w4 w3\nbucket 0 ring w2 w1\n", 800);
  const Estimate estimate = step.simulate();
  const OpSeconds op = step.seconds(400);
  const TimelineEvent pass = event_of(estimate, 0, backward(0));
  const TimelineEvent first = event_of(estimate, 0, all_reduce_of(0));
  const TimelineEvent second = event_of(estimate, 0, all_reduce_of(1));
  EXPECT_NEAR(first.start - pass.start, 2 * op.backward, 1e-15);
  EXPECT_LT(first.end, pass.end);
  EXPECT_NEAR(second.start, pass.end, 1e-15);
  EXPECT_NEAR(estimate.devices[0].exposed_communication,
              length(second) + length(event_of(estimate, 0, {Opcode::kReport, -1, -1})), 1e-15);
}

TEST(Simulator, BucketsWaitForEachOtherOnTheCollectiveStream) {
  const Step step(chain_of(2), kUnit + std::string("host a unit 2 bandwidth=1e6 latency=0\n"),
                  "stage a/0=4 a/1=4 : *\nbucket 0 ring w2\nbucket 0 ring w1\n", 8);
  const Estimate estimate = step.simulate();
  const TimelineEvent first = event_of(estimate, 0, all_reduce_of(0));
  EXPECT_GT(first.end, event_of(estimate, 0, backward(0)).end);
  EXPECT_EQ(event_of(estimate, 0, all_reduce_of(1)).start, first.end);
}

/// h3 = ((x w) v) w: both ends read w.
Graph tied_chain() {
  Graph graph = testing::graph_of(
      "input h0 [n,64]\nparameter w [64,64]\nparameter v [64,64]\n"
      "h1 = MatMul(h0, w) [n,64]\nh2 = MatMul(h1, v) [n,64]\nh3 = MatMul(h2, w) [n,64]\n"
      "outputs h3\nloss h3\n");
  graph.tensor(graph.find_tensor("h0")).needs_gradient = true;
  return graph;
}

/// Three operators, a bucket each; a sum takes longer than the backward of an operator. So a pass
/// goes on at each bucket when the sum before it ends, and sums follow each other without a gap,
/// from one micro-batch to the next.
TEST(Simulator, ABackwardPassWaitsWithinForTheGradientsThatItHasMade) {
  const std::string cluster =
      kUnit + std::string("host a unit 2 bandwidth=1e6 latency=0 nic=1e6 nic-latency=0\n");
  const std::string buckets = "bucket 0 ring w3\nbucket 0 ring w2\nbucket 0 ring w1\n";
  const auto step = [&](const std::string& state) {
    return Step(chain_of(3), cluster,
                "micro-batches 2\nstage a/0=8 a/1=8 state=" + state + " : *\n" + buckets, 32);
  };
  const Step divided = step("gradients");
  const OpSeconds op = divided.seconds(8);
  const Estimate estimate = divided.simulate();
  const auto scatter = [&](int bucket, int mb) {
    return event_of(estimate, 0, {Opcode::kReduceScatter, bucket, mb});
  };
  ASSERT_GT(length(scatter(0, 0)), 2 * (op.forward + op.backward));
  const TimelineEvent first = event_of(estimate, 0, backward(0));
  EXPECT_NEAR(scatter(0, 0).start, first.start + op.backward, 1e-12);
  EXPECT_NEAR(scatter(1, 0).start, scatter(0, 0).end, 1e-12);
  EXPECT_NEAR(scatter(2, 0).start, scatter(1, 0).end, 1e-12);
  // It makes the second bucket and waits for the first, then the third and waits for the second.
  EXPECT_NEAR(first.end, scatter(1, 0).end, 1e-12);
  const TimelineEvent second = event_of(estimate, 0, backward(1));
  EXPECT_NEAR(second.start, first.end + 3 * op.forward, 1e-12);
  EXPECT_NEAR(scatter(0, 1).start, scatter(2, 0).end, 1e-12);  // it has waited for that one
  EXPECT_NEAR(second.end, scatter(1, 1).end, 1e-12);
  const TimelineEvent update = event_of(estimate, 0, kUpdate);
  EXPECT_NEAR(update.start, scatter(2, 1).end, 1e-12);
  // A device computes as long as where all sums come last; what passes wait is no computing.
  const double computing = 6 * (op.forward + op.backward) + length(update);
  EXPECT_NEAR(estimate.devices[0].compute_seconds, computing, 1e-12);
  // Two scatters and a gather, each of half a bucket, in place of an all-reduce: SGD keeps no
  // state.
  const Estimate whole = step("optimizer").simulate();
  EXPECT_EQ(estimate.devices[0].bytes_sent - whole.devices[0].bytes_sent, 3 * 64 * 64 * 4 / 2);
}

/// Three operators, a bucket each, of which gathers take longer than operators: they follow each
/// other without a gap, and passes wait within for each.
TEST(Simulator, APassWaitsWithinForTheParametersThatItNeeds) {
  const std::string cluster =
      kUnit + std::string("host a unit 2 bandwidth=1e6 latency=0 nic=1e6 nic-latency=0\n");
  const Step divided(chain_of(3), cluster,
                     "micro-batches 1\nstage a/0=8 a/1=8 state=parameters : *\n"
                     "bucket 0 ring w3\nbucket 0 ring w2\nbucket 0 ring w1\n",
                     16);
  const OpSeconds op = divided.seconds(8);
  const Estimate estimate = divided.simulate();
  const auto gather = [&](Opcode pass, int bucket) {
    return event_of(estimate, 0, {pass, bucket, 0});
  };
  const TimelineEvent first = gather(Opcode::kGatherForward, 2);
  ASSERT_GT(length(first), op.forward + op.backward);
  EXPECT_EQ(first.start, 0);
  EXPECT_NEAR(gather(Opcode::kGatherForward, 1).start, first.end, 1e-12);
  EXPECT_NEAR(gather(Opcode::kGatherForward, 0).start, 2 * length(first), 1e-12);
  const TimelineEvent pass = event_of(estimate, 0, forward(0));
  EXPECT_EQ(pass.start, 0);
  EXPECT_NEAR(pass.end, 3 * length(first) + op.forward, 1e-12);
  // The backward pass reads the last operator's bucket first. Its gather began when the forward
  // pass needed that bucket, and its sum comes behind the gather of the next.
  const TimelineEvent again = gather(Opcode::kGatherBackward, 0);
  EXPECT_NEAR(again.end, 4 * length(first), 1e-12);
  EXPECT_NEAR(event_of(estimate, 0, {Opcode::kReduceScatter, 0, 0}).start,
              gather(Opcode::kGatherBackward, 1).end, 1e-12);
  EXPECT_NEAR(gather(Opcode::kGatherBackward, 2).start,
              event_of(estimate, 0, {Opcode::kReduceScatter, 0, 0}).end, 1e-12);
  EXPECT_NEAR(event_of(estimate, 0, backward(0)).end,
              gather(Opcode::kGatherBackward, 2).end + op.backward +
                  std::max(0.0, length(first) - op.backward),
              1e-12)
      << "the last bucket is full, and the sum of the one before it has ended";
  const TimelineEvent update = event_of(estimate, 0, kUpdate);
  EXPECT_NEAR(estimate.devices[0].compute_seconds, 3 * (op.forward + op.backward) + length(update),
              1e-12);
}

/// Rajbhandari et al. (SC 2020), section 7: 2 (n - 1) / n of the parameters without ZeRO's third
/// stage, 3 (n - 1) / n with it; and so much for each micro-batch.
TEST(Simulator, DividedParametersTravelHalfAsMuchAgainAsGradients) {
  const std::string cluster =
      kUnit + std::string("host a unit 4 bandwidth=1e9 latency=0 nic=1e9 nic-latency=0\n");
  const auto bytes = [&](const std::string& state, int micro_batches) {
    const Step step(chain_of(3), cluster,
                    "micro-batches " + std::to_string(micro_batches) +
                        "\nstage a/0=8 a/1=8 a/2=8 a/3=8 " + state + ": *\n" +
                        "bucket 0 ring w3\nbucket 0 ring w2\nbucket 0 ring w1\n",
                    32 * micro_batches);
    return step.simulate().devices[0].bytes_sent;
  };
  const std::int64_t report = bytes("", 1) - 3 * 64 * 64 * 4 * 2 * 3 / 4;
  EXPECT_EQ(bytes("state=parameters ", 1) - report, 3 * 64 * 64 * 4 * 3 * 3 / 4);
  EXPECT_EQ(bytes("state=parameters ", 2) - report, 2 * 3 * 64 * 64 * 4 * 3 * 3 / 4);
}

TEST(Simulator, StagesThatShareAParameterSumItsGradientOverTheRanksOfBoth) {
  const std::string host = " unit 2 bandwidth=1e9 latency=3e-6\n";
  const Step step(tied_chain(), kUnit + ("host a" + host),
                  "micro-batches 2\nstage a/0=4 : h1..h2\nstage a/1=4 : *\n", 8);
  ASSERT_EQ(step.plan.buckets.size(), 2U);
  const Estimate estimate = step.simulate();
  const TimelineEvent first = event_of(estimate, 0, all_reduce_of(1));
  const TimelineEvent other = event_of(estimate, 1, all_reduce_of(1));
  EXPECT_EQ(first.start, event_of(estimate, 0, backward(1)).end);
  EXPECT_LT(event_of(estimate, 1, backward(1)).end, first.start);
  EXPECT_EQ(other.start, first.start) << "it begins when the gradients of both stages are there";
  EXPECT_NEAR(length(first), 2 * 6e-6 + 2 * 64 * 64 * 4 / 1e9 / 2, 1e-15);
  EXPECT_EQ(event_of(estimate, 0, kUpdate).start, first.end);
  EXPECT_EQ(event_of(estimate, 1, kUpdate).start, first.end);
  EXPECT_NEAR(length(event_of(estimate, 1, kUpdate)), step.costs->update_seconds(0, 64 * 64, 1),
              1e-18);
  EXPECT_EQ(estimate.stages[1].all_reduce_seconds, 0) << "it has no all-reduce of its own";
}

TEST(Simulator, ACollectiveWaitsForItsSlowestMember) {
  const Step step(chain_of(2), kUnit + std::string("host a unit 2") + kInstant,
                  "stage a/0=6 a/1=2 : *\n", 8);
  const Estimate estimate = step.simulate();
  const double slow = event_of(estimate, 0, backward(0)).end;
  EXPECT_GT(slow, event_of(estimate, 1, backward(0)).end);
  EXPECT_EQ(event_of(estimate, 1, all_reduce_of(0)).start, slow);
  EXPECT_EQ(estimate.stages[0].forward_seconds, 2 * step.seconds(6).forward);
}

TEST(Simulator, HierarchicalReductionFollowsItsPhases) {
  const std::string hosts = " unit 2 bandwidth=1e9 latency=1e-6 nic=1e8 nic-latency=1e-5\n";
  const Step step(chain_of(1), kUnit + ("host a" + hosts) + "host b" + hosts,
                  "stage a/0=2 a/1=2 b/0=2 b/1=2 : *\nbucket 0 hierarchical w1\n", 8);
  const double alone = lone_seconds(
      step.cluster, all_reduce(step.cluster, {0, 1, 2, 3}, AllReduce::kHierarchical, 64 * 64 * 4));
  EXPECT_NEAR(length(event_of(step.simulate(), 3, all_reduce_of(0))), alone, 1e-15);
}

TEST(Simulator, StepNeverGetsSlowerWithMoreBandwidth) {
  for (const char* strategy :
       {kTwoByTwo, "micro-batches 4\nstage a/0=1 a/1=1 : h1\nstage b/0=1 b/1=1 : h2\n",
        "stage a/0=2 a/1=2 b/0=2 b/1=2 : *\nbucket 0 ring w2\nbucket 0 hierarchical w1\n"}) {
    double before = std::numeric_limits<double>::infinity();
    for (double nic = 1e6; nic < 1e13; nic *= 3) {
      const std::string hosts = fmt::format(" unit 2 bandwidth=1e9 latency=1e-6 nic={}\n", nic);
      const Step step(chain_of(2), kUnit + ("host a" + hosts) + "host b" + hosts, strategy, 8);
      const double seconds = step.simulate().step_seconds;
      EXPECT_LE(seconds, before * (1 + 1e-12)) << strategy << " at " << nic;
      before = seconds;
    }
  }
}

TEST(Simulator, LinkBytesAreWhatWasSentAlongTheRoutes) {
  const std::string hosts = " unit 2 bandwidth=1e9 latency=1e-6\n";
  const Step step(chain_of(4), kUnit + ("host a" + hosts) + "host b" + hosts,
                  "micro-batches 2\nstage a/0=3 a/1=1 : h1 h2\nstage b/0=2 b/1=2 : h3 h4\n", 8);
  const Estimate estimate = step.simulate();
  // Every byte that a rank sends leaves by its port.
  for (const DeviceEstimate& device : estimate.devices) {
    const DeviceId id = step.cluster.find_device(device.device);
    const LinkId out = step.cluster.devices[static_cast<std::size_t>(id)].out;
    EXPECT_EQ(estimate.link_bytes[static_cast<std::size_t>(out)], device.bytes_sent);
  }
  // Between the hosts: all rows of the cut, there and back, and the report.
  const auto link_named = [&](const std::string& name) {
    const auto& links = step.cluster.links;
    const auto found = std::find_if(links.begin(), links.end(),
                                    [&](const Link& link) { return link.name == name; });
    return estimate.link_bytes[static_cast<std::size_t>(found - links.begin())];
  };
  EXPECT_EQ(link_named("a nic out"), 8 * 64 * 4 + mean_report_bytes(4, 5));
  EXPECT_EQ(link_named("a nic in"), 8 * 64 * 4 + mean_report_bytes(4, 5));
  std::int64_t sum = 0;
  for (const DeviceEstimate& device : estimate.devices) sum += device.bytes_sent;
  EXPECT_EQ(estimate.bytes_sent, sum);
}

TEST(Simulator, MemoryIsThatOfTheMemoryModel) {
  const Step step = pipeline(2, 4, "1f1b", kInstant);
  const Estimate estimate = step.simulate();
  const Result<std::vector<MemoryUse>> memory = peak_memory(step.plan, step.graph);
  ASSERT_TRUE(memory.ok());
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(estimate.devices[r].memory.total(), (*memory)[r].total());
    EXPECT_GT(estimate.devices[r].memory.total(), 0);
  }
}

std::string timeline_text(const Estimate& estimate) {
  std::string text;
  for (const TimelineEvent& event : estimate.timeline) {
    text += fmt::format("{} {} {} {}\n", event.rank, name_of(event.instruction), event.start,
                        event.end);
  }
  return text;
}

TEST(Simulator, GivesTheSameEstimateEveryTime) {
  const std::string hosts = " unit 2 bandwidth=1e9 latency=1e-6\n";
  const Step step(chain_of(4), kUnit + ("host a" + hosts) + "host b" + hosts,
                  "micro-batches 4\nstage a/0=1 a/1=1 : h1 h2\nstage b/0=1 b/1=1 : h3 h4\n", 8);
  const Estimate one = step.simulate(), two = step.simulate();
  EXPECT_EQ(one.step_seconds, two.step_seconds);
  EXPECT_EQ(timeline_text(one), timeline_text(two));
}

// In a step's timeline a rank computes one thing at a time, and everything once.
TEST(Simulator, TimelineHasEveryInstructionOnceAndNoOverlapInAStream) {
  const std::string hosts = " unit 2 bandwidth=1e9 latency=1e-6\n";
  const Step step(chain_of(4), kUnit + ("host a" + hosts) + "host b" + hosts,
                  "micro-batches 4\nstage a/0=1 a/1=1 : h1 h2\nstage b/0=1 b/1=1 : h3 h4\n", 8);
  const Estimate estimate = step.simulate();
  std::size_t instructions = 0;
  for (const Program& program : step.plan.programs) {
    instructions += 2 * program.instructions.size();
  }
  EXPECT_EQ(estimate.timeline.size(), instructions);
  std::vector<double> busy_until(4 * kStreamKindCount);
  for (const TimelineEvent& event : estimate.timeline) {
    const StreamKind stream = stream_of(event.instruction.opcode);
    double& until = busy_until[static_cast<std::size_t>(event.rank * kStreamKindCount +
                                                        static_cast<int>(stream))];
    EXPECT_GE(event.start, until) << name_of(event.instruction);
    EXPECT_GE(event.end, event.start) << name_of(event.instruction);
    until = event.end;
  }
}

std::string failure_of(const Step& step) {
  const Result<Estimate> estimate = step.try_simulate();
  EXPECT_FALSE(estimate.ok());
  EXPECT_EQ(estimate.status().code(), StatusCode::kInternal);
  return estimate.status().message();
}

void remove(std::vector<Instruction>& instructions, InstructionId id) {
  const auto found = std::find_if(instructions.begin(), instructions.end(),
                                  [&](const Instruction& i) { return i.id == id; });
  ASSERT_NE(found, instructions.end());
  instructions.erase(found);
}

TEST(Simulator, NamesAnInstructionThatWaitsForASendThatNeverComes) {
  Step step = pipeline(2, 1, "1f1b", kInstant);
  remove(step.plan.programs[0].instructions, send(0, 0));
  EXPECT_EQ(failure_of(step),
            "the plan cannot finish: on rank 0, recv_gradient c0 mb 0 never ends");
}

TEST(Simulator, NamesAnInstructionThatWaitsForALaterOne) {
  Step step = pipeline(1, 1, "1f1b", kInstant);
  for (Instruction& instruction : step.plan.programs[0].instructions) {
    if (instruction.id == forward(0)) instruction.after.push_back(backward(0));
  }
  EXPECT_EQ(failure_of(step), "the plan cannot finish: on rank 0, forward s0 mb 0 never ends");
}

TEST(Simulator, NamesADependencyThatItsProgramLacks) {
  Step step = pipeline(2, 1, "1f1b", kInstant);
  remove(step.plan.programs[1].instructions, forward(0));
  step.plan.programs[1].instructions.push_back({kUpdate, {forward(0)}});
  EXPECT_EQ(failure_of(step),
            "the plan cannot finish: update waits for forward:0, which its program lacks");
}

TEST(Simulator, RefusesAPlanForAnotherCluster) {
  Step step = pipeline(2, 1, "1f1b", kInstant);
  step.cluster.hosts[0].name = "z";
  const Result<Estimate> estimate = step.try_simulate();
  ASSERT_FALSE(estimate.ok());
  EXPECT_EQ(estimate.status().message(), "the plan's device 'a/0' is not in cluster 'test'");
}

}  // namespace
}  // namespace agpcs
