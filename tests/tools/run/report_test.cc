// SPDX-License-Identifier: Apache-2.0
#include "tools/run/report.h"

#include "tests/runtime/plans.h"

#include <agpcs/digest.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

StepReport step(std::int64_t number, double seconds, double loss) {
  StepReport report;
  report.step = number;
  report.seconds = seconds;
  report.loss = loss;
  return report;
}

TEST(StepSeconds, AreAllKeptWhereTheyAreFew) {
  StepSeconds seconds;
  for (const double value : {5.0, 1.0, 3.0, 2.0}) seconds.add(value);
  EXPECT_EQ(seconds.median(), 2.5);
}

TEST(StepSeconds, AMillionHaveAboutTheMedianThatTheyHave) {
  StepSeconds seconds;
  for (int i = 0; i < 1'000'000; ++i) seconds.add(i);  // the later the slower: all must count alike
  EXPECT_NEAR(seconds.median(), 500'000, 10'000);
}

TEST(RunReport, SumsUpWithoutTheFirstStepsTime) {
  std::ostringstream out, err;
  RunReport report(make_plan({{{4}}, {}}), true, {out, err});
  report.step(step(0, 9, 2.5));
  for (int i = 1; i < 4; ++i) report.step(step(i, i, 2.0));
  report.step(step(4, 4, 1.5));
  out.str("");
  report.summary(0);
  EXPECT_THAT(out.str(), HasSubstr("\"steps\": 5, \"median_step_seconds\": 2.5, "));
  EXPECT_THAT(out.str(), HasSubstr("\"first_loss\": 2.5, \"last_loss\": 1.5}"));
}

TEST(RunReport, SaysThatNoStepIsLeftInPlaceOfASummary) {
  std::ostringstream out, err;
  RunReport report(make_plan({{{4}}, {}}), false, {out, err});
  report.nothing_left(10, 8);
  report.summary(0);
  EXPECT_EQ(out.str(),
            "  * no step is left to train: 10 are done, and --steps 8 counts them, too\n");
  RunReport json(make_plan({{{4}}, {}}), true, {out, err});
  out.str("");
  json.nothing_left(10, 8);
  EXPECT_EQ(out.str(), "");
}

TEST(RunReport, AStepOfSeveralBatchesHasTheirSamplesAndTakesTheirTime) {
  std::ostringstream out, err;
  const Plan plan = make_plan({{{4}}, {}});
  RunReport report(plan, true, {out, err}, 0, 3);
  report.start("loopback");
  report.step(step(0, 1.5, 2.5));
  EXPECT_THAT(out.str(), HasSubstr("\"batch\": 4, \"batches\": 3, "));
  EXPECT_THAT(out.str(), HasSubstr("\"expected_step_seconds\": 1.5"));
  EXPECT_THAT(out.str(), HasSubstr("\"samples_per_second\": 8.0, \"deviation\": 0.0"));
}

TEST(RunReport, SaysWhatAValidationGave) {
  std::ostringstream out, err;
  RunReport report(make_plan({{{4}}, {}}), false, {out, err});
  report.validated(8, {2.125, 3, 4, 5}, 0.25);
  report.validated(9, {2.125, 0, 0, 5}, 0.25);
  EXPECT_EQ(out.str(),
            "  * before step 8: validation loss 2.125, accuracy 75.00%, 5 samples in 250ms\n"
            "  * before step 9: validation loss 2.125, 5 samples in 250ms\n");
}

TEST(RunReport, OneStepIsItsOwnMedian) {
  std::ostringstream out, err;
  RunReport report(make_plan({{{4}}, {}}), true, {out, err});
  report.step(step(0, 9, 2.5));
  report.summary(0);
  EXPECT_THAT(out.str(), HasSubstr("\"steps\": 1, \"median_step_seconds\": 9.0, "));
}

TrainerEvent event_of(TrainerEvent::Kind kind) {
  TrainerEvent event;
  event.kind = kind;
  event.step = 8;
  event.running_step_seconds = 0.75;
  event.step_seconds = 0.5;
  return event;
}

// tests/system/schemas validates the file, too.
TEST(RunReport, EveryEventIsALineOfJson) {
  const Plan plan = make_plan({{{4}}, {}});
  const Plan rounded = make_plan({.shares = {{2, 2}}, .cuts = {}, .wire_type = DType::kBf16});
  std::ostringstream out, err;
  RunReport(rounded, true, {out, err}).start("gloo");
  RunReport report(plan, true, {out, err});
  RunReport(plan, true, {out, err}, 128).step(step(0, 2, 2.5));
  report.start("loopback");
  report.resumed("saved/step-00000006", 6);
  report.step(step(6, 0.5, 2.25));
  report.step(step(7, 0.625, std::numeric_limits<double>::infinity()));
  TrainerEvent drift = event_of(TrainerEvent::Kind::kDrift);
  drift.changes = {{Quantity::kCompute, 1, 2.5, 6, DriftCause::kHeld}};
  drift.before = {{0, 1, 1e-9, 1e-5}};
  drift.now = {{0, 1, 4e-9, 2e-3}};
  report.event(drift);
  report.event(event_of(TrainerEvent::Kind::kDrift));
  report.event(event_of(TrainerEvent::Kind::kProposed));
  TrainerEvent kept = event_of(TrainerEvent::Kind::kKept);
  kept.why = "a \"move\" takes longer than it saves";
  report.event(kept);
  TrainerEvent switched = event_of(TrainerEvent::Kind::kSwitched);
  switched.plan = &plan;
  switched.seconds = 0.25;
  switched.bytes_moved = 4096;
  report.event(switched);
  report.recorded(8, {true, true, ""});
  report.recorded(8, {true, false, "rank 1: no GPU"});
  report.validated(8, {2.125, 3, 4, 5}, 0.25);
  report.validated(8, {2.125, 0, 0, 5}, 0.25);
  report.saved("saved/step-00000008", 8, 0.125, true);
  print_lost({out, err}, {{1},
                          {"local/1"},
                          "rank 1 (local/1) was killed by signal 9 (Killed)",
                          "net.without-1.plan",
                          6});
  report.summary(1 << 20);

  std::ifstream file("tests/tools/run/every_event.jsonl");
  const std::string expected{std::istreambuf_iterator<char>(file), {}};
  // The file has no digest, which would change with every word of a plan.
  std::string printed = out.str();
  const std::string digest = digest_of(print_plan(plan));
  ASSERT_NE(printed.find(digest), std::string::npos) << printed;
  printed.replace(printed.find(digest), digest.size(), "sha256:" + std::string(64, '0'));
  EXPECT_EQ(printed, expected);
}

TEST(RunReport, PrintsTokensBesideSamplesWhereSamplesHaveThem) {
  const Plan plan = make_plan({{{4}}, {}});
  const double samples = static_cast<double>(plan.training.batch);
  std::ostringstream out, err, without;
  RunReport report(plan, false, {out, err}, 128);
  report.start("loopback");
  EXPECT_THAT(out.str(), HasSubstr("samples/s      tokens/s   step time"));
  report.step(step(0, 2, 2.5));
  EXPECT_THAT(out.str(),
              HasSubstr(fmt::format("{:>12.1f}  {:>12.0f}  ", samples / 2, samples * 64)));
  report.summary(0);
  EXPECT_THAT(out.str(), HasSubstr(fmt::format("({:.1f} samples/s, {:.0f} tokens/s): ", samples / 2,
                                               samples * 64)));
  RunReport plain(plan, false, {without, err});
  plain.start("loopback");
  EXPECT_THAT(without.str(), ::testing::Not(HasSubstr("tokens")));
}

TEST(RunReport, HasTokensInJsonWhereSamplesHaveThem) {
  std::ostringstream out, err;
  const Plan plan = make_plan({{{4}}, {}});
  RunReport report(plan, true, {out, err}, 128);
  report.step(step(0, 2, 2.5));
  const double rate = 64 * static_cast<double>(plan.training.batch);
  EXPECT_THAT(out.str(),
              HasSubstr(fmt::format("\"tokens_per_second\": {:.1f}, \"deviation\": ", rate)));
}

}  // namespace
}  // namespace agpcs
