// SPDX-License-Identifier: Apache-2.0
// Moves that lack memory.
#include "planner/refine/moves/moves.h"
#include "planner/refine/search.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs::testing {
namespace {

/// Returns those of all moves from where `search` stands that change the number of micro-batches.
std::vector<Move> changes_of_micro_batches(StrategySearch& search) {
  Rng rng(0);
  std::vector<Move> moves = search.moves(100'000, rng);
  std::erase_if(moves, [](const Move& move) {
    return move.kind != static_cast<int>(kKindOf<SetMicroBatches>);
  });
  return moves;
}

TEST(StrategySearch, AMoveThatLacksMemoryLetsStagesKeepLess) {
  const std::string hosts =
      " bandwidth=900e9 fp32=15e12\nhost a k 1 nic=12e9\nhost b k 1 nic=12e9\n";
  const auto roomy = problem_of(chain(8, 2048), cluster_of("kind k memory=4e9" + hosts), 4096);
  Strategy start = strategy_of(
      "micro-batches 4 1f1b\nstage a/0=1024 : h0 a0 h1 a1 h2 a2 h3 a3\nstage b/0=1024 : *\n",
      roomy->graph, roomy->cluster);
  Strategy fewer = start;
  fewer.micro_batches = 2;
  Evaluator evaluator(*roomy);
  const std::int64_t keeps = evaluator.replica_bytes(fewer, 0, 2048, {});
  const std::int64_t recomputes = evaluator.replica_bytes(fewer, 0, 2048, kWholeStage);
  ASSERT_LT(recomputes, keeps);
  const std::string memory = std::to_string((keeps + recomputes) / 2);
  const auto problem =
      problem_of(chain(8, 2048), cluster_of("kind k memory=" + memory + hosts), 4096);
  const auto search = make_strategy_search(*problem, {start}, 1, MoveHelp::kYes);
  ASSERT_TRUE(search->score().fits());
  int helped = 0;
  for (std::size_t i = 0; i < changes_of_micro_batches(*search).size(); ++i) {
    search->take(changes_of_micro_batches(*search)[i]);
    if (search->strategy().micro_batches == 2) {
      EXPECT_TRUE(search->score().fits());
      EXPECT_TRUE(search->strategy().stages[0].recompute);
      ++helped;
    }
    search->go_back();
  }
  EXPECT_EQ(helped, 1);
}

}  // namespace
}  // namespace agpcs::testing
