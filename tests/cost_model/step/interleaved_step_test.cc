// SPDX-License-Identifier: Apache-2.0
// The simulator, and what explains its steps, where ranks have several stages each.
#include "cost_model/explain/critical_path.h"
#include "cost_model/explain/step_report.h"
#include "cost_model/explain/step_waits.h"
#include "ir/base/at.h"
#include "tests/cost_model/step/steps.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

namespace agpcs {
namespace {

using testing::chain_of;
using testing::event_of;
using testing::kInstant;
using testing::kUnit;
using testing::Step;

/// `layers` layers in each of the stages of `groups` groups of `width` devices, which have `each`
/// stages.
Step interleaved(int groups, int each, int micro_batches, int width = 1, int layers = 1,
                 const std::string& links = kInstant) {
  std::string strategy =
      fmt::format("micro-batches {} {}\n", micro_batches, each == 1 ? "1f1b" : "interleaved");
  for (int s = 0; s < groups * each; ++s) {
    strategy += "stage";
    for (int i = 0; i < width; ++i) {
      strategy += fmt::format(" a/{}={}", s % groups * width + i, 8 / width);
    }
    const std::string from = fmt::format("h{}", s * layers + 1);
    const std::string last = fmt::format("h{}", (s + 1) * layers);
    const bool ends = s + 1 == groups * each;
    strategy += ends          ? " : *\n"
                : layers == 1 ? fmt::format(" : {}\n", last)
                              : fmt::format(" : {}..{}\n", from, last);
  }
  return {chain_of(groups * each * layers),
          kUnit + fmt::format("host a unit {}", groups * width) + links, strategy,
          8 * micro_batches};
}

/// The time that a rank waits, in parts of the time that it computes.
double bubble(const Step& step) {
  const Estimate estimate = step.simulate();
  const double ideal = estimate.devices.front().compute_seconds;
  return estimate.step_seconds / ideal - 1;
}

/// Narayanan et al., SC 2021, section 2.2: (P - 1) / (V M), whose numbers of micro-batches are
/// multiples of P. Our rounds make others have the same bubble.
TEST(InterleavedStep, ItsBubbleIsThatOfItsAuthors) {
  for (int groups = 2; groups <= 4; ++groups) {
    for (int each = 1; each <= 4; ++each) {
      for (const int rounds : {1, 2, 5}) {
        const int micro_batches = rounds * groups;
        const double paper = static_cast<double>(groups - 1) / (each * micro_batches);
        EXPECT_NEAR(bubble(interleaved(groups, each, micro_batches)) / paper, 1, 1e-3)
            << groups << " groups, " << each << " stages each, " << micro_batches;
      }
    }
  }
}

/// The same where P does not divide M, from P on: rounds have P micro-batches or more.
TEST(InterleavedStep, ItsBubbleIsTheSameForOtherNumbersOfMicroBatches) {
  for (int groups = 2; groups <= 4; ++groups) {
    for (int each = 2; each <= 3; ++each) {
      for (const int micro_batches : {5, 7, 11}) {
        const double paper = static_cast<double>(groups - 1) / (each * micro_batches);
        EXPECT_NEAR(bubble(interleaved(groups, each, micro_batches)) / paper, 1, 1e-3)
            << groups << " groups, " << each << " stages each, " << micro_batches;
      }
    }
  }
}

/// With fewer than P, the micro-batches follow one another through all stages and back.
TEST(InterleavedStep, FewMicroBatchesGoThroughAllStagesAndBack) {
  const Step step = interleaved(4, 3, 2);
  const double pass = step.seconds(8).sum();
  EXPECT_NEAR(step.simulate().step_seconds / ((4 * 3 + 1) * pass), 1, 1e-3);
}

/// Two layers in the first two stages, one in the others: passes take what their stage takes, and
/// the figures of a stage are its own.
TEST(InterleavedStep, PassesTakeWhatTheirStageTakes) {
  const Step step(chain_of(6), kUnit + std::string("host a unit 2") + kInstant,
                  "micro-batches 4 interleaved\nstage a/0=8 : h1..h2\nstage a/1=8 : h3..h4\n"
                  "stage a/0=8 : h5\nstage a/1=8 : *\n",
                  32);
  const Estimate estimate = step.simulate();
  const double forward = step.seconds(8).forward, backward = step.seconds(8).backward;
  for (int stage = 0; stage < 4; ++stage) {
    const int layers = stage < 2 ? 2 : 1;
    const TimelineEvent there = event_of(estimate, stage % 2, {Opcode::kForward, stage, 1});
    const TimelineEvent back = event_of(estimate, stage % 2, {Opcode::kBackward, stage, 3});
    EXPECT_NEAR(there.end - there.start, layers * forward, 1e-15) << stage;
    EXPECT_NEAR(back.end - back.start, layers * backward, 1e-15) << stage;
    EXPECT_NEAR(estimate.stages[at(stage)].forward_seconds, layers * forward, 1e-15) << stage;
    EXPECT_NEAR(estimate.stages[at(stage)].backward_seconds, layers * backward, 1e-15) << stage;
  }
  EXPECT_NEAR(estimate.devices[0].compute_seconds, 4 * 3 * (forward + backward), 1e-12);
}

/// The gradients of a rank's last stage are summed while it computes passes of the first one, each
/// from the place in its own backward pass on where they are made.
TEST(InterleavedStep, GradientsOfAStageAreSummedWhileOthersCompute) {
  const std::string buckets =
      "bucket 3 ring w4\nbucket 2 ring w3\nbucket 1 ring w2\n"
      "bucket 0 ring w1\n";
  const Step step(chain_of(4), kUnit + std::string("host a unit 4 bandwidth=1e12 latency=0\n"),
                  "micro-batches 2 interleaved\nstage a/0=4 a/1=4 : h1\nstage a/2=4 a/3=4 : h2\n"
                  "stage a/0=4 a/1=4 : h3\nstage a/2=4 a/3=4 : *\n" +
                      buckets,
                  16);
  const Estimate estimate = step.simulate();
  const auto at_rank_0 = [&](Opcode opcode, int object, int mb) {
    return event_of(estimate, 0, {opcode, object, mb});
  };
  EXPECT_NEAR(at_rank_0(Opcode::kAllReduce, 1, -1).start, at_rank_0(Opcode::kBackward, 2, 1).end,
              1e-15);
  EXPECT_LT(at_rank_0(Opcode::kAllReduce, 1, -1).end, at_rank_0(Opcode::kBackward, 0, 1).end);
  EXPECT_NEAR(at_rank_0(Opcode::kAllReduce, 3, -1).start, at_rank_0(Opcode::kBackward, 0, 1).end,
              1e-15);
  for (int stage = 0; stage < 4; ++stage) {  // the same bytes, alone on their links
    EXPECT_GT(estimate.stages[at(stage)].all_reduce_seconds, 0) << stage;
  }
}

/// What begins a step, and the update, are of all stages of a rank at once.
TEST(InterleavedStep, BeginningAndUpdateComeOnceARank) {
  Step step = interleaved(2, 2, 4);
  const Estimate plain = step.simulate();
  step.cluster.kinds[0].fit.begin_per_element = 1e-9;
  step.costs =
      std::make_unique<CostTable>(*CostTable::make(step.graph, step.cluster, step.plan.training));
  const Estimate slower = step.simulate();
  const auto longer = [&](InstructionId id) {
    const TimelineEvent a = event_of(plain, 0, id), b = event_of(slower, 0, id);
    return (b.end - b.start) - (a.end - a.start);
  };
  EXPECT_NEAR(longer({Opcode::kForward, 0, 0}), 2 * 64 * 64 * 1e-9, 1e-15);
  EXPECT_NEAR(longer({Opcode::kForward, 2, 0}), 0, 1e-15);
  EXPECT_EQ(
      step.costs->update_seconds(0, 2 * 64 * 64, 2),
      make_step_model(step.plan, step.graph, step.cluster, *step.costs)->ranks[0].times.update);
}

TEST(InterleavedStep, IsExplained) {
  const Step step = interleaved(3, 2, 7, 2, 1, " bandwidth=1e10 latency=1e-6\n");
  const StepModel model = *make_step_model(step.plan, step.graph, step.cluster, *step.costs);
  const Estimate estimate = step.simulate();
  const StepWaits waits(step.plan, model, estimate);
  const CriticalPath path = critical_path(step.plan, model, step.cluster, waits);
  EXPECT_EQ(path.steps.front().since, 0);
  EXPECT_EQ(path.steps.back().until, estimate.step_seconds);
  for (std::size_t i = 1; i < path.steps.size(); ++i) {
    EXPECT_EQ(path.steps[i].since, path.steps[i - 1].until) << i;
  }
  double sum = 0;
  std::map<std::string, double> computing;
  for (const PathPart& part : path.parts) {
    sum += part.seconds;
    if (part.sort == PathSort::kCompute) computing[part.name] += part.seconds;
  }
  EXPECT_NEAR(sum, estimate.step_seconds, 1e-12);
  EXPECT_GT(computing.size(), 3U) << "stages of several laps are on the path";
  const StepAnalysis report =
      *step_report(step.plan, step.graph, step.cluster, model, estimate, waits);
  for (std::size_t r = 0; r < report.devices.size(); ++r) {
    const DeviceReport& d = report.devices[r];
    EXPECT_NEAR(
        d.compute + d.activations + d.gradients + d.all_reduce + d.sends + d.other + d.finished,
        estimate.step_seconds, 1e-12);
    EXPECT_NEAR(d.compute, estimate.devices[r].compute_seconds, 1e-12);
  }
  EXPECT_EQ(title_of(step.plan, 1, {Opcode::kForward, 4, 2}), "forward s4 mb 2");
  EXPECT_EQ(title_of(step.plan, 1, {Opcode::kUpdate, -1, -1}), "update s1,s4");
}

}  // namespace
}  // namespace agpcs
