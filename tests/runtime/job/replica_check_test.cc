// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/replica_check.h"

#include "tests/runtime/fake_executor.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/world.h"

#include <agpcs/replayer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <string>
#include <vector>

namespace agpcs {
namespace {

/// What each rank says of its replicas after two steps, once `spoilt` has changed one number.
std::vector<Status> said(const TestPlan& spec, int spoilt) {
  const Plan plan = make_plan(spec);
  std::vector<Status> said(static_cast<std::size_t>(plan.rank_count()));
  std::latch stepped(plan.rank_count());
  loopback_world().run(plan.rank_count(), [&](Transport& transport) {
    const int rank = transport.rank();
    FakeExecutor executor;
    executor.remembers = true;
    auto replayer = Replayer::create(plan, rank, transport, executor);
    ASSERT_TRUE(replayer.ok()) << replayer.status().message();
    bool ran = true;
    for (int step = 0; step < 2; ++step) ran = ran && (*replayer)->run_step().ok();
    stepped.arrive_and_wait();  // a rank that differs ends the job, also steps of others
    ASSERT_TRUE(ran);
    if (rank == spoilt) {
      const StateItem item = executor.state().back();
      const float other = 0.25F;
      ASSERT_TRUE(executor.write_state(item, item.range().end - 1, 1, &other).ok());
    }
    said[static_cast<std::size_t>(rank)] =
        check_replicas(plan, rank, executor, transport, 2, std::chrono::seconds(60));
  });
  return said;
}

TEST(CheckReplicas, FindsNothingWhereAllAreEqual) {
  for (const Status& status : said({{{3, 1}, {1, 2, 1}}, {{0, 1, {"a"}}}, 2}, -1)) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(CheckReplicas, NamesTheReplicaThatDiffers) {
  const auto by_rank = said({{{3, 1}, {1, 2, 1}}, {{0, 1, {"a"}}}, 2}, 3);
  EXPECT_EQ(by_rank[3].code(), StatusCode::kUnavailable);
  EXPECT_THAT(by_rank[3].message(),
              testing::ContainsRegex("rank 3 \\(host1/1\\): before step 2 the parameters differ "
                                     "from those of rank 2: checksum [0-9a-f]{16} here, "
                                     "[0-9a-f]{16} there\n  hint: "));
}

TEST(CheckReplicas, ReplicasThatDivideStateShareTheParametersAlone) {
  TestPlan spec{{{3, 1}, {1, 2, 1}}, {{0, 1, {"a"}}}, 2};
  spec.weights = {2, 0, 1};
  for (const Status& status : said(spec, -1)) EXPECT_TRUE(status.ok()) << status.message();
  // The last item of rank 4 is what it remembers of its part: that of no other.
  for (const Status& status : said(spec, 4)) EXPECT_TRUE(status.ok()) << status.message();
}

TEST(CheckReplicas, OfTeamsAreMembersOfOneNumber) {
  TestPlan spec{{{3, 1}, {4}}, {{0, 1, {"a"}}}, 2};
  spec.pieces = {{3, 1}, {1, 1}};
  for (const Status& status : said(spec, -1)) EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(said(spec, 2)[2].message(),
              testing::HasSubstr("rank 2 (host1/0): before step 2 the parameters differ from those "
                                 "of rank 0"));
  for (const Status& status : said(spec, 5)) EXPECT_TRUE(status.ok()) << status.message();
}

TEST(CheckReplicas, AStageWithoutReplicasHasNothingToCompare) {
  for (const Status& status : said({{{2}, {2}}, {{0, 1, {"a"}}}, 2}, 1)) EXPECT_TRUE(status.ok());
}

}  // namespace
}  // namespace agpcs
