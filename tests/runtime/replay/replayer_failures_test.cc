// SPDX-License-Identifier: Apache-2.0
// Plans and executors that are refused, and steps that fail.
#include "tests/runtime/replay/replayer_over.h"

#include <agpcs/digest.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class ReplayerFailsOver : public ReplayerOver {};

INSTANTIATE_TEST_SUITE_P(All, ReplayerFailsOver,
                         testing::Values(loopback_world(), tcp_world(), gloo_world()),
                         [](const auto& world) { return world.param.name; });

// Collects what each rank says when a step fails.
std::vector<Status> failures_of(const WorldKind& world, const Plan& plan, int failing_rank,
                                const std::function<Status(const char*, int)>& trouble,
                                const ReplayOptions& options) {
  std::vector<Status> said(static_cast<std::size_t>(plan.rank_count()));
  world.run(plan.rank_count(), [&](Transport& transport) {
    FakeExecutor executor;
    if (transport.rank() == failing_rank) executor.before = trouble;
    auto replayer = Replayer::create(plan, transport.rank(), transport, executor, options);
    ASSERT_TRUE(replayer.ok()) << replayer.status().message();
    Result<StepReport> report = (*replayer)->run_step();
    if (report.ok()) report = (*replayer)->run_step();
    said[static_cast<std::size_t>(transport.rank())] = report.status();
    EXPECT_EQ((*replayer)->run_step().status().message(), report.status().message());
  });
  return said;
}

TEST_P(ReplayerFailsOver, AnErrorOfOneRankStopsAllAndNamesRankAndInstruction) {
  const Plan plan = make_plan({{{2}, {1, 1}}, {{0, 1, {"a"}}}, 4});
  const auto said = failures_of(
      GetParam(), plan, 2,
      [](const char* what, int mb) {
        if (std::string(what) == "backward" && mb == 3) return internal_error("out of memory");
        return Status();
      },
      patient());
  EXPECT_EQ(said[2].message(), "rank 2 (host1/0): backward mb=3: out of memory");
  EXPECT_EQ(said[2].code(), StatusCode::kInternal);
  for (const int rank : {0, 1}) {
    const Status& status = said[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::kPeerFailed);
    EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(rank) + " (host0/"));
    EXPECT_THAT(status.message(), HasSubstr("rank 2 (host1/0): backward mb=3: out of memory"));
  }
}

TEST_P(ReplayerFailsOver, ARankThatComputesForTooLongIsNamedByTheOneThatWaits) {
  const Plan plan = make_plan({{{2}, {2}}, {{0, 1, {"a"}}}, 2});
  std::latch given_up(1);
  std::vector<Status> said(2);
  GetParam().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    const int rank = transport.rank();
    if (rank == 0) {
      executor.before = [&](const char*, int mb) {
        if (mb == 1) given_up.wait();
        return Status();
      };
    }
    auto replayer = Replayer::create(plan, rank, transport, executor,
                                     {std::chrono::milliseconds(rank == 1 ? 1000 : 60000)});
    ASSERT_TRUE(replayer.ok()) << replayer.status().message();
    said[static_cast<std::size_t>(rank)] = (*replayer)->run_step().status();
    if (rank == 1) given_up.count_down();
  });
  EXPECT_EQ(said[1].code(), StatusCode::kTimeout);
  EXPECT_EQ(said[1].message(),
            "rank 1 (host0/1): recv c0 mb=1: recv from rank 0, 96 bytes: timed out after 1000 ms");
  EXPECT_THAT(said[0].message(), HasSubstr("rank 1 (host0/1): recv c0 mb=1"));
}

/// Executors that lack something.
struct SumsWholeGradients : FakeExecutor {
  Status fill_bucket(int bucket) override { return Executor::fill_bucket(bucket); }
};
struct HoldsWholeParameters : FakeExecutor {
  Status gather_with(ParameterSource& source) override { return Executor::gather_with(source); }
};
struct UpdatesWholeParameters : FakeExecutor {
  UpdatesWholeParameters() { divides = false; }
};

/// Expects that an executor is refused for a plan whose ranks divide what `level` says.
template <typename Lacking>
void expect_refused(const WorldKind& world, StateLevel level, const std::string& why) {
  const Plan plan = make_plan(
      {.shares = {{3, 1}}, .cuts = {}, .micro_batches = 2, .weights = {1}, .level = level});
  world.run(plan.rank_count(), [&](Transport& transport) {
    Lacking executor;
    const auto replayer = Replayer::create(plan, transport.rank(), transport, executor, patient());
    ASSERT_FALSE(replayer.ok());
    EXPECT_THAT(replayer.status().message(), HasSubstr(why));
  });
}

TEST_P(ReplayerFailsOver, AnExecutorThatCannotDivideGradientsIsRefusedBeforeTheFirstStep) {
  expect_refused<SumsWholeGradients>(
      GetParam(), StateLevel::kGradients,
      "divides its gradients among ranks, and the executor cannot sum them "
      "after each micro-batch\n  hint: a plan made with --without gradients");
}

TEST_P(ReplayerFailsOver, AnExecutorThatCannotGatherIsRefusedBeforeTheFirstStep) {
  expect_refused<HoldsWholeParameters>(
      GetParam(), StateLevel::kParameters,
      "divides parameters among ranks, and the executor cannot gather them for "
      "its passes\n  hint: a plan made with --without parameters");
}

TEST_P(ReplayerFailsOver, AnExecutorThatCannotDivideStateIsRefusedBeforeTheFirstStep) {
  expect_refused<UpdatesWholeParameters>(
      GetParam(), StateLevel::kOptimizer,
      "divides its state among ranks, and the executor cannot update a part of "
      "its parameters\n  hint: a plan made with --without state");
}

TEST_P(ReplayerFailsOver, RanksWithDifferentPlansAreRefusedWithBothDigests) {
  const Plan plan = make_plan({{{1, 1}}, {}, 1});
  Plan other = plan;
  other.training.optimizer.learning_rate = 0.5;
  const std::string first = digest_of(print_plan(plan)), second = digest_of(print_plan(other));
  GetParam().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    const bool is_first = transport.rank() == 0;
    const auto replayer =
        Replayer::create(is_first ? plan : other, transport.rank(), transport, executor, patient());
    ASSERT_FALSE(replayer.ok());
    // It sees so itself, or hears first that the other one has.
    const std::string own = is_first ? "rank 0 (host0/0): rank 1 holds another plan: " + second +
                                           " there, " + first + " here"
                                     : "rank 1 (host0/1): rank 0 holds another plan: " + first +
                                           " there, " + second + " here";
    EXPECT_THAT(
        replayer.status().message(),
        AnyOf(own, AllOf(HasSubstr("holds another plan"), HasSubstr(first), HasSubstr(second))));
  });
}

TEST(Replayer, RefusesAPlanForAnotherNumberOfRanks) {
  const Plan plan = make_plan({{{1, 1}}, {}, 1});
  loopback_world().run(1, [&](Transport& transport) {
    FakeExecutor executor;
    const auto replayer = Replayer::create(plan, 0, transport, executor);
    ASSERT_FALSE(replayer.ok());
    EXPECT_EQ(replayer.status().message(),
              "rank 0 (host0/0): the plan is for 2 ranks, the transport has 1");
  });
}

TEST(Replayer, RefusesAPlanThatDoesNotVerify) {
  Plan plan = make_plan({{{1}}, {}, 1});
  plan.programs[0].instructions.pop_back();
  loopback_world().run(1, [&](Transport& transport) {
    FakeExecutor executor;
    const auto replayer = Replayer::create(plan, 0, transport, executor);
    ASSERT_FALSE(replayer.ok());
    EXPECT_THAT(replayer.status().message(), HasSubstr("'report' is missing"));
  });
}

TEST(Replayer, PassesOnThatTheExecutorCannotPrepare) {
  class Unprepared : public FakeExecutor {
   public:
    Status prepare(const Plan& /*plan*/, int /*rank*/) override {
      return {StatusCode::kUnavailable, "no such device"};
    }
  };
  const Plan plan = make_plan({{{1}}, {}, 1});
  loopback_world().run(1, [&](Transport& transport) {
    Unprepared executor;
    const auto replayer = Replayer::create(plan, 0, transport, executor);
    EXPECT_EQ(replayer.status().message(), "rank 0 (host0/0): no such device");
    EXPECT_EQ(replayer.status().code(), StatusCode::kUnavailable);
  });
}

}  // namespace
}  // namespace agpcs
