// SPDX-License-Identifier: Apache-2.0
// Training by a plan whose replicas are unlike teams equals training alone.
#include "tests/system/training/teams.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

// Replicas of one stage have unlike numbers of members, or other parts: gradients are summed slice
// by slice.
TEST_F(Teams, OfUnlikeDegreesTrainAsOneRankAloneDoes) {
  for (const char* const model : {"gpt", "llama"}) {
    SCOPED_TRACE(model);
    read(model);
    const Trained want = train(alone(training()));
    const std::vector<Shapes> all = {{{{3, 1}, {}, false, {{1, 1}, {1}}}},
                                     {{{1, 3}, {}, true, {{1}, {1, 1}}}},
                                     {{{3, 1}, {}, false, {{5, 3, 4}, {1, 1}}}},
                                     {{{2, 1, 1}, {}, true, {{1, 1}, {1}, {3, 5, 4}}}},
                                     {{{2, 2}, {}, false, {{5, 3}, {1, 1}}}, {{4}, {5, 3}, true}}};
    for (const Shapes& shapes : all) expect_equal(shapes, training(), want);
    for (const Shapes& shapes : {all[2], all[3]}) expect_equal(shapes, training(), want, 1, 1e15);
  }
  EXPECT_GT(divided_, 100);
}

TEST_F(Teams, OfUnlikeDegreesClipAndAddUpAndEvaluate) {
  read("gpt");
  Training clipped = training(7);
  clipped.optimizer.max_norm = 0.1;
  const Shapes shapes = {{{3, 1}, {}, false, {{5, 3, 4}, {1, 1}}}, {{4}, {1, 1}}};
  expect_equal(shapes, clipped, train(alone(clipped), 3), 3, 1e15);
  expect_equal_evaluation(shapes, evaluate(alone(training())), 1e15);
}

TEST_F(Teams, OfUnlikeDegreesSumInAWireType) {
  read("gpt");
  Training narrow = training();
  narrow.wire_type = DType::kBf16;
  const Shapes shapes = {{{3, 1}, {}, false, {{5, 3, 4}, {1}}}};
  const Plan plan = testing::plan_with_teams(graph_, narrow, shapes, kMicroBatches, 1e15);
  const Trained got = train(plan, 1, 5), want = train(alone(training()), 1, 5);
  for (std::size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 0.02 * want.losses[i]);
  }
}

}  // namespace
}  // namespace agpcs
