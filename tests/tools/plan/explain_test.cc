// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/explain.h"

#include "tests/planner/problem/problems.h"
#include "tests/support/plan_builders.h"
#include "tools/plan/explain_path.h"
#include "tools/plan/views.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>
#include <string>

namespace agpcs {
namespace {

using testing::chain;
using testing::fast_and_slow;
using ::testing::HasSubstr;
using testing::plan_of;
using testing::problem_of;

struct Explained {
  std::unique_ptr<const Problem> problem;
  Plan plan;
  Explanation explanation;

  Explained(Cluster cluster, std::int64_t batch, const std::string& strategy)
      : problem(problem_of(chain(4, 1024), std::move(cluster), batch)),
        plan(plan_of(problem->graph, problem->cluster, strategy, batch)),
        explanation(*explain(plan, *problem)) {}
};

/// What the path's lines say, without seconds and percents.
std::string path_of(const Explained& e, std::size_t top = 100) {
  std::istringstream text(path_text(e.explanation, top));
  std::string result, line;
  std::getline(text, line);  // an empty one
  std::getline(text, line);  // the title
  while (std::getline(text, line)) {
    line = line.substr(0, 61);
    result += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return result;
}

TEST(Explain, FoldsMicroBatchesThatFollowOneAnother) {
  const Explained e(fast_and_slow(), 4096, "micro-batches 8\nstage a/0=512 : *\n");
  EXPECT_EQ(path_of(e),
            "  8 times in turn\n"
            "    forward s0 mb 0-7              a/0\n"
            "    backward s0 mb 0-7             a/0\n"
            "  update s0                        a/0\n");
}

TEST(Explain, SaysWhatIsInFlightWhereItIsNotTheTextbooks) {
  const Explained e(fast_and_slow(), 4096,
                    "micro-batches 8\nstage a/0=512 in-flight=5 : h0..a1\nstage a/1=512 : *\n");
  EXPECT_THAT(explain_text(e.explanation, 5),
              HasSubstr("\n  s0: 5 micro-batches in flight (1f1b: 2)\n"));
}

/// Two devices with two stages each: a title names a pass's stage, and what is of a device all of
/// its stages.
TEST(Explain, NamesTheStagesOfADeviceThatHasSeveral) {
  const Explained e(fast_and_slow(), 4096,
                    "micro-batches 8 interleaved\nstage a/0=512 : h0..a0\nstage a/1=512 : h1..a1\n"
                    "stage a/0=512 : h2..a2\nstage a/1=512 : *\n");
  const std::string text = explain_text(e.explanation, 20);
  EXPECT_THAT(text, HasSubstr("forward s3 mb"));
  EXPECT_THAT(text, HasSubstr("computing s2"));
  EXPECT_THAT(text, HasSubstr("s1,s3 "));
  EXPECT_THAT(text, HasSubstr("\n  in the plan (4 tried)\n"));
  EXPECT_THAT(show_plan(e.plan),
              HasSubstr("  order: 5 forward passes, then backward and forward in turns; rounds of "
                        "4 x 2 micro-batches go through s0,s2\n"));
  EXPECT_THAT(show_plan(e.plan), HasSubstr("  order: as in s1\n"));
}

TEST(Explain, FoldsWhatRepeatsAcrossStages) {
  // The second stage is three times as slow and never waits once it has begun.
  const Explained e(fast_and_slow("16e9", "1e12"), 4096,
                    "micro-batches 4 gpipe\nstage a/0=1024 : h0..a1\nstage b/0=1024 : *\n");
  EXPECT_EQ(path_of(e),
            "  forward s0 mb 0                  a/0\n"
            "  send c0 mb 0                     a/0 -> b/0\n"
            "  forward s1 mb 0-3                b/0\n"
            "  backward s1 mb 0-3               b/0\n"
            "  send_gradient c0 mb 3            b/0 -> a/0\n"
            "  backward s0 mb 3                 a/0\n"
            "  report                           2 devices\n");
}

TEST(Explain, JoinsTheShortestLinesWhereThereAreMoreThanAskedFor) {
  const Explained e(fast_and_slow("16e9", "1e12"), 4096,
                    "micro-batches 4 gpipe\nstage a/0=1024 : h0..a1\nstage b/0=1024 : *\n");
  EXPECT_EQ(path_of(e, 2),
            "  ...                              2 lines\n"
            "  forward s1 mb 0-3                b/0\n"
            "  backward s1 mb 0-3               b/0\n"
            "  ...                              3 lines\n");
}

/// Characters, of which UTF-8's later bytes are none.
std::size_t columns(const std::string& line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

TEST(Explain, FitsATerminalOf100Columns) {
  for (const std::string strategy :
       {"stage a/0=1024 a/1=1024 b/0=1024 b/1=1024 : *\n",
        "micro-batches 4\nstage a/0=1000 a/1=24 : h0..a1\nstage b/0=512 b/1=512 : *\n"}) {
    const Explained e(fast_and_slow(), 4096, strategy);
    std::istringstream text(explain_text(e.explanation, 10));
    for (std::string line; std::getline(text, line);) EXPECT_LE(columns(line), 100u) << line;
  }
}

TEST(Explain, ChangesOfThePlanComeBeforeThoseOfTheHardware) {
  const Explained e(fast_and_slow("16e9", "1e12"), 4096,
                    "stage a/0=1024 a/1=1024 b/0=1024 b/1=1024 : *\n");
  const std::string text = explain_text(e.explanation, 10);
  const std::size_t plan = text.find("    1. shares in proportion to the devices' speed");
  const std::size_t hardware = text.find("  in the hardware, under the same plan (");
  EXPECT_LT(plan, hardware) << text;
  EXPECT_THAT(text.substr(hardware), HasSubstr("    1. all 2 slow 10% faster"));
}

TEST(Explain, SaysSoWhenNoChangeOfThePlanHelps) {
  const Explained alone(fast_and_slow(), 1, "stage a/0=1 : *\n");
  EXPECT_THAT(explain_text(alone.explanation, 10),
              HasSubstr("    nothing that was tried saves 0.5% of the step\n  in the hardware"));
}

}  // namespace
}  // namespace agpcs
