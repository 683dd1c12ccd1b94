// SPDX-License-Identifier: Apache-2.0
#include "tools/common/chrome_trace.h"

#include "cost_model/explain/step_report.h"
#include "cost_model/step/simulator.h"
#include "tests/cost_model/step/steps.h"
#include "tests/support/checker.h"

#include <gmock/gmock.h>

#include <string>

namespace agpcs {
namespace {

using testing::chain_of;
using ::testing::HasSubstr;
using testing::kUnit;
using testing::Step;

/// What tests/tools/common/check_trace.py says of the trace.
std::string checked(const std::string& trace) {
  const testing::CheckerSays said =
      testing::run_checker("tests/tools/common/check_trace.py", trace, ".json");
  EXPECT_TRUE(said.fine) << said.output;
  return said.output;
}

constexpr const char* kHost = " unit 2 bandwidth=1e9 latency=1e-6\n";

TEST(ChromeTrace, HasAProcessARankAThreadAStreamAndASliceAnInstruction) {
  const Step step(chain_of(2), kUnit + (std::string("host a") + kHost),
                  "stage a/0=4 : h1\nstage a/1=4 : h2\n", 4);
  EXPECT_EQ(checked(chrome_trace(step.plan, step.simulate())),
            "process rank 0 a/0\n"
            "process rank 1 a/1\n"
            "arrows 2\n"
            "0 compute: forward s0 mb 0\n"
            "0 send: send c0 mb 0 bytes=1024\n"
            "1 recv: recv c0 mb 0 bytes=1024\n"
            "1 compute: forward s1 mb 0\n"
            "1 compute: backward s1 mb 0\n"
            "0 recv: recv_gradient c0 mb 0 bytes=1024\n"
            "1 compute: update s1\n"
            "1 send: send_gradient c0 mb 0 bytes=1024\n"
            "0 compute: backward s0 mb 0\n"
            "0 compute: update s0\n"
            "0 collective: report\n"
            "1 collective: report\n");
}

TEST(ChromeTrace, DrawsAnArrowForEveryPairOfReplicas) {
  const Step step(chain_of(2), kUnit + (std::string("host a") + kHost) + "host b" + kHost,
                  "micro-batches 2\nstage a/0=3 a/1=1 : h1\nstage b/0=2 b/1=2 : h2\n", 8);
  const std::string facts = checked(chrome_trace(step.plan, step.simulate()));
  EXPECT_THAT(facts, HasSubstr("arrows 12\n"));  // 3 pairs, 2 directions, 2 micro-batches
  EXPECT_THAT(facts, HasSubstr("2 collective: all_reduce b1 bytes=16384\n"));
}

TEST(ChromeTrace, EscapesNames) {
  Step step(chain_of(1), kUnit + std::string("host a unit 1\n"), "stage a/0=4 : *\n", 4);
  Estimate estimate = step.simulate();
  estimate.devices[0].device = "a \"quoted\\\n/0";
  EXPECT_THAT(checked(chrome_trace(step.plan, estimate)),
              HasSubstr("process rank 0 a \"quoted\\\n/0\n"));
}

TEST(ChromeTrace, CountsMemoryAndTheLoadOfLinks) {
  const Step step(chain_of(2), kUnit + (std::string("host a") + kHost),
                  "stage a/0=4 : h1\nstage a/1=4 : h2\n", 4);
  const Estimate estimate = step.simulate();
  const StepModel model = *make_step_model(step.plan, step.graph, step.cluster, *step.costs);
  const StepWaits waits(step.plan, model, estimate);
  const StepAnalysis report =
      *step_report(step.plan, step.graph, step.cluster, model, estimate, waits);
  const std::string text = checked(chrome_trace(step.plan, step.cluster, estimate, report));
  EXPECT_THAT(text, HasSubstr("process links\n"));
  EXPECT_THAT(text, HasSubstr("counter memory of rank 0 a/0, at most " +
                              std::to_string(estimate.devices[0].memory.total()) + "\n"));
  EXPECT_THAT(text, HasSubstr("counter a/0 out of links, at most 100.0\n"));
}

}  // namespace
}  // namespace agpcs
