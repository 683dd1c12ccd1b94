// SPDX-License-Identifier: Apache-2.0
#include "tools/common/measured_step.h"

#include "tests/ir/plan/text.h"
#include "tools/common/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Plan plan() {
  auto plan = parse_plan(testing::kPlanText, "test.plan");
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

/// As planned: step 1.23 ms, a/0 87.3% of it, a/1 29.1%, b/0 all of it; all-reduces of s0 310 us.
MeasuredStep as_planned() {
  MeasuredStep step;
  step.step = 412;
  step.steps = 64;
  step.step_seconds = 1.23e-3;
  step.seconds = {{1.074e-3, 0.5e-3, 42e-6}, {0.358e-3, 0.31e-3, 14e-6}, {1.23e-3, 0, 56e-6}};
  step.timeline = {{0, {Opcode::kForward, -1, 0}, 0, 1e-4},
                   {2, {Opcode::kReport, -1, -1}, 1e-3, 1.1e-3}};
  return step;
}

TEST(Drift, SaysThatAllIsAsPlanned) {
  EXPECT_EQ(drift_text(plan(), as_planned()),
            "medians of 64 steps; the trace shows step 412\n"
            "\n"
            "                               planned  measured  factor\n"
            "step                            1.23ms    1.23ms    1.00\n"
            "compute     a/0                 1.07ms    1.07ms    1.00\n"
            "compute     a/1                  358us     358us    1.00\n"
            "compute     b/0                 1.23ms    1.23ms    1.00\n"
            "all-reduce  s0                   310us     310us    1.00\n"
            "send        a/0                 42.0us    42.0us    1.00\n"
            "send        a/1                 14.0us    14.0us    1.00\n"
            "send        b/0                 56.0us    56.0us    1.00\n"
            "\n"
            "all is as planned, within 10% and 1% of the step\n");
}

TEST(Drift, SaysWhatDepartsTheMostSecondsFirst) {
  MeasuredStep step = as_planned();
  step.step_seconds = 2e-3;
  step.seconds[1][0] *= 2.4;  // computing
  step.seconds[2][2] *= 0.5;  // sends
  step.seconds[0][1] *= 9;    // all-reduces, of who waited
  const std::string text = drift_text(plan(), step);
  EXPECT_THAT(text, HasSubstr("\n\n"
                              "the step takes 1.6 times longer than planned (+770us a step)\n"
                              "a/1 computes 2.4 times slower than planned (+501us a step)\n"
                              "sends of b/0 take 2 times shorter than planned (-28.0us a step)\n"));
  EXPECT_THAT(text, Not(HasSubstr("all-reduces of s0 take")));
}

TEST(Drift, JsonHasEveryFigure) {
  MeasuredStep step = as_planned();
  step.seconds[1][0] *= 2.4;
  const std::string json = drift_json(plan(), step);
  EXPECT_THAT(json, HasSubstr("\"format\": \"agpcs-plan drift 1\""));
  EXPECT_THAT(json, HasSubstr("a/1 computes 2.4 times slower than planned"));
}

TEST(MeasuredTrace, IsReadAsItWasWritten) {
  const MeasuredStep step = as_planned();
  const std::string text = measured_trace(plan(), step, nullptr);
  const auto again = read_measured_trace(text, "trace.json", plan());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->step, 412);
  EXPECT_EQ(again->steps, 64);
  EXPECT_EQ(drift_text(plan(), *again), drift_text(plan(), step));
  EXPECT_THAT(text, HasSubstr("\"rank 2 b/0 measured\""));
  EXPECT_EQ(text, measured_trace(plan(), step, nullptr));
}

TEST(MeasuredTrace, HasThePlannedStepBesideTheMeasured) {
  Estimate planned;
  planned.devices.resize(1);
  planned.devices[0].device = "a/0";
  planned.timeline = {{0, {Opcode::kForward, -1, 0}, 0, 2e-4}};
  const std::string text = measured_trace(plan(), as_planned(), &planned);
  EXPECT_THAT(text, HasSubstr(R"("pid": 0, "args": {"name": "rank 0 a/0 measured"})"));
  EXPECT_THAT(text, HasSubstr(R"("pid": 1, "args": {"name": "rank 0 a/0 planned"})"));
  EXPECT_THAT(text, HasSubstr(R"("pid": 4, "args": {"name": "rank 2 b/0 measured"})"));
}

std::string error_of(const std::string& text) {
  const auto step = read_measured_trace(text, "trace.json", plan());
  return step.ok() ? "no error" : step.status().message();
}

TEST(MeasuredTrace, OfAnotherPlanIsRefused) {
  Plan other = plan();
  other.made_by.seed = 8;
  EXPECT_THAT(error_of(measured_trace(other, as_planned(), nullptr)),
              HasSubstr("trace.json: the trace is of another plan: sha256:"));
}

TEST(MeasuredTrace, WhatIsNoTraceIsRefused) {
  const std::string hint = "\n  hint: agpcs-run --trace FILE writes one";
  for (const char* text :
       {"{}", "[]", "3", "{\"traceEvents\": []}", "{\"otherData\": [\"format\"]}"}) {
    EXPECT_EQ(error_of(text), "trace.json: not a trace that agpcs-run wrote: no format" + hint);
  }
  EXPECT_EQ(error_of("{\"otherData\": {\"format\": \"agpcs-trace 2\"}}"),
            "trace.json: not a trace that agpcs-run wrote: the format is 'agpcs-trace 2'" + hint);
  EXPECT_EQ(error_of("\"otherData\": {\n"),
            "trace.json:1:12: error: not JSON: unexpected ':'; expected end of input\n"
            "    \"otherData\": {\n"
            "               ^" +
                hint);
}

TEST(MeasuredTrace, AFileThatEndsTooEarlyIsRefused) {
  std::string text = measured_trace(plan(), as_planned(), nullptr);
  text.resize(text.rfind("\n]}"));
  EXPECT_THAT(error_of(text),
              HasSubstr("error: not JSON: unexpected end of input; expected ']'\n"));
}

TEST(MeasuredTrace, IsReadInAnyLayoutAndOrderOfKeys) {
  const std::string text = measured_trace(plan(), as_planned(), nullptr);
  const Json trace = *parse_json(text, {"trace.json"});
  const std::string packed =
      json_line({{"traceEvents", trace["traceEvents"]}, {"otherData", trace["otherData"]}});
  const auto step = read_measured_trace(packed, "trace.json", plan());
  ASSERT_TRUE(step.ok()) << step.status().message();
  EXPECT_EQ(drift_text(plan(), *step), drift_text(plan(), as_planned()));
}

TEST(MeasuredTrace, AFigureThatIsNoneIsRefused) {
  const std::string text = measured_trace(plan(), as_planned(), nullptr);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return changed.replace(at, from.size(), to);
  };
  EXPECT_EQ(error_of(with("0.001074000", "nan")),
            "trace.json: 'rank 0: compute, all-reduce, send' has 'nan 0.000500000 0.000042000' "
            "where 3 numbers should be");
  EXPECT_THAT(error_of(with("0.001074000 ", "")), HasSubstr("where 3 numbers should be"));
  EXPECT_THAT(error_of(with("\"steps\": \"64\"", "\"steps\": \"-1\"")),
              HasSubstr("'steps' has '-1' where 1 number should be"));
  EXPECT_THAT(error_of(with("rank 1:", "rank 7:")), HasSubstr("'rank 1: compute, all-reduce, "
                                                              "send' is missing"));
}

}  // namespace
}  // namespace agpcs
