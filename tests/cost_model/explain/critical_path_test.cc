// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/critical_path.h"

#include "cost_model/explain/step_report.h"
#include "cost_model/step/engine.h"
#include "ir/base/units.h"
#include "ir/strategy/memory.h"
#include "tests/cost_model/step/steps.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::chain_of;
using testing::kInstant;
using testing::kUnit;
using testing::Step;

/// A step with everything that is derived from it.
struct Explained {
  const Step& step;
  StepModel model;
  Estimate estimate;
  StepWaits waits;
  CriticalPath path;

  explicit Explained(const Step& s)
      : step(s),
        model(*make_step_model(s.plan, s.graph, s.cluster, *s.costs)),
        estimate(s.simulate()),
        waits(s.plan, model, estimate),
        path(critical_path(s.plan, model, s.cluster, waits)) {}

  std::string title(int rank, InstructionId id) const {
    return title_of(step.plan, step.plan.stage_of_rank(rank), id);
  }
  double slack(int rank, InstructionId id) const {
    return path.slack[static_cast<std::size_t>(waits.find(rank, id))];
  }
  StepAnalysis report() const {
    return *step_report(step.plan, step.graph, step.cluster, model, estimate, waits);
  }
};

/// One line a step of the path: why it waited, rank, instruction, seconds on the path.
std::string text(const Explained& e) {
  std::string result;
  for (const PathStep& s : e.path.steps) {
    result += fmt::format("{}: rank {} {} {}\n", name_of(s.waited_for), s.rank,
                          e.title(s.rank, s.instruction), figure(s.until - s.since, "s"));
  }
  return result;
}

constexpr InstructionId kForward0 = {Opcode::kForward, -1, 0};
constexpr InstructionId kBackward0 = {Opcode::kBackward, -1, 0};

TEST(CriticalPath, GoesThroughTheSlowerReplicaAndTheLastBucket) {
  const Step step(chain_of(2), kUnit + std::string("host a unit 2") + kInstant,
                  "stage a/0=3 a/1=1 : *\nbucket 0 ring w2\nbucket 0 ring w1\n", 4);
  const Explained e(step);
  const double forward = 2 * step.seconds(3).forward, backward = 2 * step.seconds(3).backward;
  ASSERT_NEAR(e.estimate.step_seconds, forward + backward, 1e-15);
  EXPECT_EQ(text(e), fmt::format("start: rank 0 forward s0 mb 0 {}\n"
                                 "stream: rank 0 backward s0 mb 0 {}\n"
                                 "gradients: rank 0 all_reduce b1 0s\n"
                                 "stream: rank 0 report 0s\n",
                                 figure(forward, "s"), figure(backward, "s")));
  EXPECT_EQ(e.slack(0, kForward0), 0);
  EXPECT_NEAR(e.slack(1, kBackward0), 2.0 / 3 * (forward + backward), 1e-15);
  // The first bucket may be reduced as late as the second one.
  EXPECT_NEAR(e.slack(0, {Opcode::kAllReduce, 0, -1}), backward / 2, 1e-15);
}

TEST(CriticalPath, FollowsMessagesFromStageToStageAndBack) {
  const Step step(chain_of(2), kUnit + std::string("host a unit 2 bandwidth=1e9 latency=1e-6\n"),
                  "stage a/0=4 : h1\nstage a/1=4 : h2\n", 4);
  const Explained e(step);
  const std::string forward = figure(step.seconds(4).forward, "s");
  const std::string backward = figure(step.seconds(4).backward, "s");
  EXPECT_EQ(text(e), "start: rank 0 forward s0 mb 0 " + forward +
                         "\nafter: rank 0 send c0 mb 0 3.02us\n"  // 2 x 1 us, 1024 B at 1 GB/s
                         "peer: rank 1 recv c0 mb 0 0s\n"
                         "after: rank 1 forward s1 mb 0 " +
                         forward + "\nstream: rank 1 backward s1 mb 0 " + backward +
                         "\nafter: rank 1 send_gradient c0 mb 0 3.02us\n"
                         "peer: rank 0 recv_gradient c0 mb 0 0s\n"
                         "after: rank 0 backward s0 mb 0 " +
                         backward + "\nafter: rank 0 report 4.03us\n");
}

TEST(CriticalPath, SplitsCommunicationIntoLatencyBytesAndSharing) {
  // Both stages' first devices send to the second ones through one NIC of 1 GB/s.
  const std::string hosts =
      "host a unit 2 bandwidth=1e30 latency=0 nic=1e9 nic-latency=1e-6\n"
      "host b unit 2 bandwidth=1e30 latency=0 nic=1e9 nic-latency=1e-6\n";
  const Step step(chain_of(2), kUnit + hosts, "stage a/0=2 a/1=2 : h1\nstage b/0=2 b/1=2 : h2\n",
                  4);
  const Explained e(step);
  double transfer = 0, sharing = 0, sum = 0;
  for (const PathPart& part : e.path.parts) {
    if (part.sort == PathSort::kTransfer) transfer += part.seconds;
    if (part.sort == PathSort::kSharing) sharing += part.seconds;
    sum += part.seconds;
  }
  // Forward and back, 512 bytes alone; two at a time take twice as long.
  EXPECT_NEAR(transfer, 2 * 512e-9, 1e-12);
  EXPECT_NEAR(sharing, 2 * 512e-9, 1e-12);
  EXPECT_NEAR(sum, e.estimate.step_seconds, 1e-15);
}

constexpr const char* kTwoHosts =
    "host a unit 2 bandwidth=1e9 latency=1e-6 nic=2e8 nic-latency=2e-6\n"
    "host b unit 2 bandwidth=5e8 latency=1e-6 nic=2e8 nic-latency=2e-6\n";

const std::vector<std::string>& strategies() {
  static const std::vector<std::string> all = {
      "stage a/0=5 a/1=3 : *\nbucket 0 ring w6 w5\nbucket 0 hierarchical w4 w3 w2 w1\n",
      "stage a/0=2 a/1=2 b/0=3 b/1=1 : *\nbucket 0 hierarchical w6 w5 w4\nbucket 0 ring w3 w2 w1\n",
      "micro-batches 4\nstage a/0=2 : h1..h3\nstage b/0=2 : *\n",
      "micro-batches 4 gpipe\nstage a/0=2 : h1\nstage a/1=2 : h2..h3\nstage b/0=2 : h4\n"
      "stage b/1=2 : *\n",
      "micro-batches 2\nstage a/0=3 a/1=1 : h1..h4\nstage b/0=2 b/1=2 : *\n",
      "micro-batches 8\nstage a/0=1 : h1..h2\nstage a/1=1 recompute : h3..h5\nstage b/1=1 : *\n",
  };
  return all;
}

TEST(CriticalPath, CoversTheStepWithoutGapAndHasNoSlack) {
  for (const std::string& strategy : strategies()) {
    const Step step(chain_of(6), kUnit + std::string(kTwoHosts), strategy, 8);
    const Explained e(step);
    double now = 0, sum = 0;
    for (const PathStep& s : e.path.steps) {
      EXPECT_EQ(s.since, now) << strategy;
      EXPECT_LE(s.until, s.end + 1e-18) << strategy;
      EXPECT_EQ(e.slack(s.rank, s.instruction), 0) << strategy << e.title(s.rank, s.instruction);
      now = s.until;
    }
    EXPECT_EQ(now, e.estimate.step_seconds) << strategy;
    for (const PathPart& part : e.path.parts) sum += part.seconds;
    EXPECT_NEAR(sum, now, 1e-9 * now) << strategy;
    for (const double slack : e.path.slack) EXPECT_TRUE(slack >= 0 && slack <= now) << strategy;
  }
}

TEST(CriticalPath, SlackIsHowMuchLongerAPassMayTake) {
  // One micro-batch, so that a rank's forward seconds are those of one instruction; latency alone,
  // so that messages take no longer when they meet others.
  const std::string hosts =
      "host a unit 2 bandwidth=1e30 latency=1e-6 nic=1e30 nic-latency=2e-6\n"
      "host b unit 1 bandwidth=1e30 latency=1e-6 nic=1e30 nic-latency=2e-6\n";
  const Step step(chain_of(6), kUnit + hosts, "stage a/0=5 a/1=3 : h1..h3\nstage b/0=8 : *\n", 8);
  const Explained e(step);
  const double slack = e.slack(1, kForward0);
  ASSERT_GT(slack, 0);
  const auto seconds_with = [&](double more) {
    StepModel model = e.model;
    model.ranks[1].times.forward += more;
    return run_step_model(step.plan, model, step.cluster, false)->seconds;
  };
  const double as_it_is = e.estimate.step_seconds;
  EXPECT_NEAR(seconds_with(0.99 * slack), as_it_is, 1e-9 * as_it_is);
  EXPECT_NEAR(seconds_with(slack + 1e-6), as_it_is + 1e-6, 1e-9 * as_it_is);
}

TEST(StepAnalysis, ComputingAndIdlingAddUpToTheStep) {
  for (const std::string& strategy : strategies()) {
    const Step step(chain_of(6), kUnit + std::string(kTwoHosts), strategy, 8);
    const Explained e(step);
    const StepAnalysis report = e.report();
    for (std::size_t r = 0; r < report.devices.size(); ++r) {
      const DeviceReport& d = report.devices[r];
      EXPECT_NEAR(d.compute, e.estimate.devices[r].compute_seconds, 1e-15) << strategy;
      EXPECT_NEAR(
          d.compute + d.activations + d.gradients + d.all_reduce + d.sends + d.other + d.finished,
          e.estimate.step_seconds, 1e-15)
          << strategy;
    }
  }
}

TEST(StepAnalysis, MemoryOverTimePeaksWhereThePeakIs) {
  for (const std::string& strategy : strategies()) {
    const Step step(chain_of(6), kUnit + std::string(kTwoHosts), strategy, 8);
    const StepAnalysis report = Explained(step).report();
    const std::vector<MemoryUse> peaks = *peak_memory(step.plan, step.graph);
    for (std::size_t r = 0; r < peaks.size(); ++r) {
      std::int64_t most = 0;
      double before = 0;
      for (const MemoryPoint& point : report.devices[r].memory) {
        most = std::max(most, point.bytes);
        EXPECT_GE(point.time, before) << strategy;
        before = point.time;
      }
      EXPECT_EQ(most, peaks[r].total()) << strategy;
    }
  }
}

TEST(StepAnalysis, LinkLoadOverTimeCarriesItsBytes) {
  for (const std::string& strategy : strategies()) {
    const Step step(chain_of(6), kUnit + std::string(kTwoHosts), strategy, 8);
    for (const LinkReport& link : Explained(step).report().links) {
      double bytes = 0;
      for (std::size_t i = 0; i + 1 < link.load.size(); ++i) {
        bytes += link.load[i].rate * (link.load[i + 1].time - link.load[i].time);
      }
      EXPECT_NEAR(bytes, static_cast<double>(link.bytes), 1e-6 * static_cast<double>(link.bytes));
      EXPECT_TRUE(link.load.empty() || link.load.back().rate == 0) << strategy;
    }
  }
}

TEST(StepAnalysis, NamesWhatADeviceWaitsFor) {
  const Step step(chain_of(2), kUnit + std::string("host a unit 2 bandwidth=1e9 latency=1e-6\n"),
                  "stage a/0=4 : h1\nstage a/1=4 : h2\n", 4);
  const Explained e(step);
  const StepAnalysis report = e.report();
  const double forward = step.seconds(4).forward, backward = step.seconds(4).backward;
  const double message = 2e-6 + 1024e-9;
  EXPECT_NEAR(report.devices[0].gradients, 2 * message + forward + backward, 1e-15);
  EXPECT_NEAR(report.devices[1].activations, forward + message, 1e-15);
  EXPECT_EQ(report.devices[0].activations, 0);
  EXPECT_EQ(report.links[0].bytes, e.estimate.link_bytes[0]);
  EXPECT_NEAR(report.links[0].utilization, (1024 + 28) / (1e9 * e.estimate.step_seconds), 1e-12);
}

}  // namespace
}  // namespace agpcs
