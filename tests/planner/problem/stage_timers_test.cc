// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/stage_timers.h"

#include "ir/base/rng.h"
#include "planner/problem/shares.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace agpcs::testing {
namespace {

std::unique_ptr<const Problem> chain_of(int layers) {
  std::string text = "input h0 [n,8]\ninput labels int64[n]\n";
  for (int i = 0; i < layers; ++i) {
    const std::string in = std::to_string(i), out = std::to_string(i + 1);
    text += "parameter w" + in + " [8,8]\nh" + out + " = MatMul(h" + in + ", w" + in + ") [n,8]\n";
  }
  const std::string last = "h" + std::to_string(layers);
  text += "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last + "\nloss l\n";
  return problem_of(graph_of(text),
                    cluster_of("kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n"
                               "host a gpu 4 nic=1e9\n"),
                    16);
}

TEST(StageTimers, AreThoseOfTheStagesAndOneForEachSetOfOperators) {
  const auto problem = chain_of(40);
  StageTimers timers(*problem);
  std::map<std::vector<OpId>, const StageTimer*> known;
  Rng rng(5);
  for (int i = 0; i < 400; ++i) {
    const int stages = 1 + static_cast<int>(rng.below(5));
    Strategy strategy;
    strategy.stages.resize(static_cast<std::size_t>(stages));
    int stage = 0;
    for (std::size_t op = 0; op < problem->graph.ops.size(); ++op) {
      if (stage + 1 < stages && rng.below(8) == 0) ++stage;
      // Now and then one of an earlier stage, as branches have.
      const bool earlier = stage > 0 && rng.below(6) == 0;
      strategy.stage_of.push_back(earlier ? stage - 1 : stage);
    }
    const std::vector<StageTimer*>& of_stages = timers.of(strategy);
    const std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
    ASSERT_EQ(of_stages.size(), ops.size());
    for (std::size_t s = 0; s < ops.size(); ++s) {
      EXPECT_TRUE(std::ranges::equal(of_stages[s]->ops(), ops[s]));
      EXPECT_EQ(known.try_emplace(ops[s], of_stages[s]).first->second, of_stages[s]);
    }
  }
  EXPECT_GT(known.size(), 500U);  // so that the table became larger
}

}  // namespace
}  // namespace agpcs::testing
