// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/refiners/best_known.h"

#include "tests/bench/refiners/problem_text.h"
#include "tests/bench/refiners/room_problems.h"

#include <agpcs/digest.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <string>
#include <vector>

namespace agpcs::bench {
namespace {

using testing::HasSubstr;

constexpr const char* kText =
    "problem 3\n"
    "digest sha256:0\n"
    "seed-step 0.5\n"
    "best-step 0.25\n"
    "found-by anneal+walks, 4000 evaluations, seed 1\n"
    "pipeline 8 1f1b\n"
    "stage 0,2 3,1 recompute 2 state=optimizer in-flight=5\n"
    "stage 1 4 recompute=5/8 -\n"
    "operators 0x12 1x7 0x1\n"
    "bucket 1 tree 5,7\n";

TEST(BestKnown, ReadsWhatItPrints) {
  const Result<std::vector<BestKnown>> read = parse_best_known(kText, "known.txt");
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), 1u);
  const Strategy& strategy = read->front().strategy;
  EXPECT_EQ(strategy.stage_of.size(), 20u);
  EXPECT_EQ(strategy.stages.front().odd, 2);
  EXPECT_EQ(strategy.stages.front().recompute, kWholeStage);
  EXPECT_EQ(strategy.stages.back().recompute, (Recomputation{8, 3}));
  EXPECT_EQ(strategy.buckets.front().algorithm, AllReduce::kTree);
  const std::string printed = print_best_known(*read);
  EXPECT_THAT(printed, HasSubstr(kText));
  const Result<std::vector<BestKnown>> again = parse_best_known(printed, "known.txt");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->front().strategy, strategy);
  EXPECT_EQ(print_best_known(*again), printed);
}

TEST(BestKnown, NamesTheLineThatSaysNothing) {
  for (const std::string line :
       {"stage 0,2 3,1 perhaps -", "stage 0 1 recompute=9/8 -", "operators 0x", "best-step soon",
        "pipeline 8 never", "bucket 0 star 1", "colour red"}) {
    const Result<std::vector<BestKnown>> read =
        parse_best_known("problem 3\n\n" + line + "\n", "known.txt");
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_EQ(read.status().message(),
              "known.txt:3: error: '" + line + "' is no line of a best known plan");
  }
}

class KeptPlans : public testing::Test {
 protected:
  const std::vector<BestKnown> all_ = read_best_known(best_known_path());
};

// What was measured on another list cannot be compared: a digest is never "mended" alone.
TEST_F(KeptPlans, AreOfTheProblemsOfTheListWhoseBytesStayTheSame) {
  std::vector<int> candidates;
  std::set<std::string> digests;
  for (const BestKnown& known : all_) {
    candidates.push_back(known.candidate);
    const std::string digest = digest_of(text_of(room_candidate(known.candidate)));
    EXPECT_EQ(digest, known.digest) << known.candidate;
    digests.insert(digest);
  }
  EXPECT_EQ(candidates, std::vector<int>(std::begin(kRoomProblems), std::end(kRoomProblems)));
  EXPECT_EQ(digests.size(), all_.size());
}

// Where a change of the cost model changes steps: `find_best_known restate`.
TEST_F(KeptPlans, AreValidAndTakeWhatTheFileSaysAndLeaveTheRoomThatSelectedThem) {
  for (const BestKnown& known : all_) {
    SCOPED_TRACE(known.candidate);
    GeneratedProblem made = room_candidate(known.candidate);
    const auto problem = Problem::make(made.graph, made.cluster, made.training);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const Result<double> seconds = seconds_of(**problem, known.strategy);
    ASSERT_TRUE(seconds.ok()) << seconds.status().message();
    EXPECT_NEAR(*seconds / known.best_seconds, 1, 1e-9);
    EXPECT_LE(known.best_seconds, kRoomAtMost * known.seed_seconds);
  }
}

}  // namespace
}  // namespace agpcs::bench
