// SPDX-License-Identifier: Apache-2.0
// The trainer moves to another plan in the middle of training, with executors whose every number is
// exact: a step that is lost, doubled or computed on wrong parameters changes the result.
#include "runtime/job/proposal.h"
#include "runtime/job/switch_budget.h"
#include "tests/runtime/fake_executor.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/world.h"

#include <agpcs/trainer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using Kind = TrainerEvent::Kind;

// The test's first plan expects seconds of what takes microseconds on all devices but one: that one
// is told to be slow as soon as the first exchanges are in.
class ScriptedReplanner final : public Replanner {
 public:
  explicit ScriptedReplanner(std::optional<Plan> answer, double step_seconds = 0.1)
      : answer_(std::move(answer)), step_seconds_(step_seconds) {}
  Result<std::optional<Replan>> replan(const Plan& /*running*/, const HardwareReport& hardware,
                                       const std::atomic<bool>& /*cancel*/) override {
    asked = hardware;
    if (!answer_) return std::optional<Replan>();
    return std::optional<Replan>(Replan{*answer_, 0.5, step_seconds_});
  }
  HardwareReport asked;

 private:
  std::optional<Plan> answer_;
  double step_seconds_;
};

// Never finds anything, and says when it was told to give up.
class EndlessReplanner final : public Replanner {
 public:
  Result<std::optional<Replan>> replan(const Plan& /*running*/, const HardwareReport& /*hardware*/,
                                       const std::atomic<bool>& cancel) override {
    started = true;
    while (!cancel) std::this_thread::yield();
    return Status(StatusCode::kCancelled, "cancelled");
  }
  std::atomic<bool> started{false};
};

class ThrowingReplanner final : public Replanner {
 public:
  Result<std::optional<Replan>> replan(const Plan& /*running*/, const HardwareReport& /*hardware*/,
                                       const std::atomic<bool>& /*cancel*/) override {
    throw std::bad_alloc();
  }
};

struct Told {
  Kind kind;
  std::int64_t step;
  std::string why;
};

struct Outcome {
  std::vector<Told> told;  // to rank 0
  std::vector<double> losses;
  std::vector<std::int64_t> last_step;  // by rank
};

// The first exchanges show what is normal: up to 33 of them, of 5 steps, where a machine is busy.
constexpr int kSteps = 200;
// Six exchanges more, in which a step lost or doubled by the move would show.
constexpr std::int64_t kStepsAfter = 30;

TEST(Proposal, WaitsForAWhileWhereADeviceMayBeAboutToChange) {
  Proposal proposal;
  EXPECT_EQ(proposal.announced(false, false), 0U);
  proposal.make({make_plan({{{1}}, {}, 1}), 2, 1});
  const std::size_t bytes = proposal.text().size();
  EXPECT_EQ(proposal.announced(false, false), bytes);
  for (int wait = 0; wait < Proposal::kMostWaits; ++wait)
    EXPECT_EQ(proposal.announced(true, false), 0U);
  EXPECT_EQ(proposal.announced(true, false), bytes);
  proposal.drop();
  EXPECT_FALSE(proposal.made());
  proposal.make({make_plan({{{1}}, {}, 1}), 2, 1});
  EXPECT_EQ(proposal.announced(true, false), 0U);
  EXPECT_EQ(proposal.announced(false, false), bytes);
}

TEST(Proposal, WaitsForDevicesThatMayReturnWithTheLinks) {
  Proposal proposal;
  proposal.make({make_plan({{{4, 4}}, {}}), 2, 1});
  const std::size_t bytes = proposal.text().size();
  for (int wait = 0; wait < Proposal::kMostWaitsAfterReturn; ++wait) {
    EXPECT_EQ(proposal.announced(false, true), 0U);
  }
  EXPECT_EQ(proposal.announced(true, true), 0U) << "a device is seen to change now";
  EXPECT_EQ(proposal.announced(false, true), bytes);
}

class TrainerOver : public OverWorld {
 protected:
  /// Trains `steps` steps, or `kStepsAfter` from where it is decided whether the plan stays, and
  /// checks losses, and every rank's parameters at the end, against one process that computes all
  /// samples.
  Outcome train(const Plan& plan, int steps, Replanner* replanner,
                const SwitchOptions& switching = {}, int unable_rank = -1, bool divides = true) {
    Outcome outcome;
    std::mutex mutex;
    GetParam().run(plan.rank_count(), [&](Transport& transport) {
      const int rank = transport.rank();
      TrainerOptions options;
      options.replay.limit = std::chrono::seconds(60);
      options.switching = switching;
      if (rank == 0) options.replanner = replanner;
      std::int64_t enough = steps;
      options.on_event = [&](const TrainerEvent& event) {
        const std::lock_guard lock(mutex);
        if (rank != 0) return;
        outcome.told.push_back({event.kind, event.step, event.why});
        if (event.kind == Kind::kKept || event.kind == Kind::kSwitched) {
          enough = std::min(enough, event.step + kStepsAfter);
        }
      };
      int made = 0;
      const auto executors = [&]() -> Result<std::unique_ptr<Executor>> {
        if (++made > 1 && rank == unable_rank) {
          return Status(StatusCode::kUnavailable, "out of memory");
        }
        auto executor = std::make_unique<FakeExecutor>();
        executor->remembers = true;
        executor->divides = divides;
        return std::unique_ptr<Executor>(std::move(executor));
      };
      auto trainer = Trainer::create(plan, rank, transport, executors, options);
      ASSERT_TRUE(trainer.ok()) << trainer.status().message();
      for (int step = 0; step < steps && !(*trainer)->stops(); ++step) {
        if (rank == 0 && step + 1 >= enough) (*trainer)->ask_to_stop();
        const auto report = (*trainer)->run_step();
        ASSERT_TRUE(report.ok()) << report.status().message();
        ASSERT_EQ(report->step, step);
        if (rank == 0) outcome.losses.push_back(report->loss);
      }
      check_parameters(**trainer, rank, static_cast<int>((*trainer)->next_step()));
    });
    for (int step = 0; step < static_cast<int>(outcome.losses.size()); step += 7) {
      EXPECT_EQ(outcome.losses[static_cast<std::size_t>(step)], fake_reference(plan, step + 1).loss)
          << "step " << step;
    }
    return outcome;
  }

  static void check_parameters(Trainer& trainer, int rank, int steps) {
    const FakeOutcome expected = fake_reference(trainer.plan(), steps, 1, /*remembers=*/true);
    const auto& executor = static_cast<const FakeExecutor&>(trainer.executor());
    const int stage = trainer.plan().stage_of_rank(rank);
    for (std::size_t b = 0; b < trainer.plan().buckets.size(); ++b) {
      if (!trainer.plan().buckets[b].is_of(stage)) continue;
      // A member of a team has a part of some buckets.
      const std::vector<double>& held = executor.parameters()[b];
      const auto first = expected.parameters[b].begin() +
                         static_cast<std::ptrdiff_t>(executor.first_elements()[b]);
      const std::vector<double> own(first, first + static_cast<std::ptrdiff_t>(held.size()));
      EXPECT_EQ(held, own) << "rank " << rank << ", " << b;
    }
  }

  static bool has(const Outcome& outcome, Kind kind) {
    for (const Told& told : outcome.told) {
      if (told.kind == kind) return true;
    }
    return false;
  }
  static std::string why_kept(const Outcome& outcome) {
    for (const Told& told : outcome.told) {
      if (told.kind == Kind::kKept) return told.why;
    }
    return "nothing was kept";
  }
};

INSTANTIATE_TEST_SUITE_P(All, TrainerOver,
                         ::testing::Values(loopback_world(), tcp_world(), gloo_world()),
                         [](const auto& world) { return world.param.name; });

Plan two_by_two(AllReduce algorithm = AllReduce::kRing) {
  Plan plan = make_plan({{{3, 1}, {1, 3}}, {{0, 1, {"a"}}}, 3, Schedule::k1F1B, algorithm});
  for (Expectation& line : plan.expect) {
    if (line.name == "utilization host0/0") line.value = 0.01;
  }
  return plan;
}
Plan one_and_three(AllReduce algorithm = AllReduce::kRing) {
  return make_plan({{{4}, {1, 2, 1}}, {{0, 1, {"a"}}}, 3, Schedule::k1F1B, algorithm});
}

TEST_P(TrainerOver, MovesToAPlanWithOtherSharesAndStagesOfRanks) {
  ScriptedReplanner replanner(one_and_three());
  const Outcome outcome = train(two_by_two(), kSteps, &replanner);
  EXPECT_TRUE(has(outcome, Kind::kDrift));
  EXPECT_TRUE(has(outcome, Kind::kProposed));
  EXPECT_TRUE(has(outcome, Kind::kSwitched));
  const HardwareReport& asked = replanner.asked;  // on a busy machine links may change first
  EXPECT_TRUE(!asked.changes.empty() || !changed_links(asked.before, asked.now).empty());
  EXPECT_EQ(replanner.asked.now.size(), replanner.asked.before.size());
  EXPECT_FALSE(replanner.asked.now.empty());
}

TEST_P(TrainerOver, MovesToAPlanThatLeavesARankIdle) {
  ScriptedReplanner replanner(make_plan({{{4}, {3, 1}, {0}}, {{0, 1, {"a"}}}, 3}));
  const Outcome outcome = train(two_by_two(), kSteps, &replanner);
  EXPECT_TRUE(has(outcome, Kind::kSwitched)) << why_kept(outcome);
}

// The new plan's groups of what stages share have numbers of their own.
TEST_P(TrainerOver, MovesBetweenPlansWhoseStagesShareABucket) {
  Plan plan = make_plan({.shares = {{3, 1}, {1, 3}},
                         .cuts = {{0, 1, {"a"}}},
                         .micro_batches = 3,
                         .shared = {{0, 1}, {0, 1}}});
  for (Expectation& line : plan.expect) {
    if (line.name == "utilization host0/0") line.value = 0.01;
  }
  ScriptedReplanner replanner(make_plan({.shares = {{4}, {1, 2, 1}},
                                         .cuts = {{0, 1, {"a"}}},
                                         .micro_batches = 3,
                                         .shared = {{0, 1}, {0, 1}}}));
  const Outcome outcome = train(plan, kSteps, &replanner);
  EXPECT_TRUE(has(outcome, Kind::kSwitched)) << why_kept(outcome);
}

TEST_P(TrainerOver, APlanThatDividesStateStaysOutWhereAnExecutorCannot) {
  Plan divided = make_plan(
      {.shares = {{4}, {1, 2, 1}}, .cuts = {{0, 1, {"a"}}}, .micro_batches = 3, .weights = {2, 1}});
  ScriptedReplanner replanner(divided);
  const Outcome outcome = train(two_by_two(), kSteps, &replanner, {}, -1, /*divides=*/false);
  EXPECT_THAT(why_kept(outcome), AnyOf(HasSubstr("divides its state among ranks"),
                                       HasSubstr("a rank could not prepare the new plan")));
  EXPECT_FALSE(has(outcome, Kind::kSwitched));
}

// What the executors remember is whole or divided before and after, in the same or in other parts.
TEST_P(TrainerOver, MovesBetweenPlansThatDivideStateAndPlansThatDoNot) {
  const auto plan_of = [](std::vector<std::vector<std::int64_t>> shares,
                          std::vector<std::int64_t> weights) {
    Plan plan = make_plan({.shares = std::move(shares),
                           .cuts = {{0, 1, {"a"}}},
                           .micro_batches = 3,
                           .shared = {{0, 1}},
                           .weights = std::move(weights)});
    for (Expectation& line : plan.expect) {
      if (line.name == "utilization host0/0") line.value = 0.01;
    }
    return plan;
  };
  const Plan whole = plan_of({{3, 1}, {1, 3}}, {});
  const Plan divided = plan_of({{3, 1}, {1, 3}}, {3, 0, 1});
  const Plan otherwise = plan_of({{4}, {1, 2, 1}}, {2, 1});
  std::vector<std::pair<const Plan*, const Plan*>> moves = {{&divided, &otherwise}};
  if (GetParam().name == loopback_world().name) {  // one move shows that a transport carries parts
    moves.insert(moves.end(), {{&whole, &otherwise}, {&divided, &whole}});
  }
  for (const auto& [before, after] : moves) {
    ScriptedReplanner replanner(*after);
    const Outcome outcome = train(*before, kSteps, &replanner);
    EXPECT_TRUE(has(outcome, Kind::kSwitched)) << why_kept(outcome);
  }
}

// Members hold parts; single ranks, and teams of other members, hold the whole or other parts.
TEST_P(TrainerOver, MovesBetweenPlansWithTeamsAndPlansWithout) {
  const auto plan_of = [](std::vector<std::vector<std::int64_t>> shares,
                          std::vector<std::vector<std::int64_t>> pieces) {
    Plan plan = make_plan({.shares = std::move(shares),
                           .cuts = {{0, 1, {"a"}}},
                           .micro_batches = 3,
                           .elements = {12, 3},
                           .pieces = std::move(pieces)});
    for (Expectation& line : plan.expect) {
      if (line.name == "utilization host0/0") line.value = 0.01;
    }
    return plan;
  };
  const Plan whole = plan_of({{3, 1}, {1, 3}}, {});
  const Plan teams = plan_of({{4}, {1, 3}}, {{3, 1}, {}});
  const Plan others = plan_of({{4}, {4}}, {{}, {1, 3, 2}});
  std::vector<std::pair<const Plan*, const Plan*>> moves = {{&teams, &others}};
  if (GetParam().name == loopback_world().name) {
    moves.insert(moves.end(), {{&whole, &teams}, {&others, &whole}});
  }
  for (const auto& [before, after] : moves) {
    ScriptedReplanner replanner(*after);
    const Outcome outcome = train(*before, kSteps, &replanner);
    EXPECT_TRUE(has(outcome, Kind::kSwitched)) << why_kept(outcome);
  }
}

// Four flows, and three groups: ranks 2 and 3 have the last flow, and come to the new plan's first.
TEST_P(TrainerOver, MovesBetweenPlansWithMoreFlowsThanGroups) {
  const Plan plan = two_by_two(AllReduce::kFlow);
  ASSERT_EQ(plan.flows.size(), 4U);
  ScriptedReplanner replanner(one_and_three(AllReduce::kFlow));
  const Outcome outcome = train(plan, kSteps, &replanner);
  EXPECT_TRUE(has(outcome, Kind::kSwitched)) << why_kept(outcome);
}

TEST_P(TrainerOver, ThePlanStaysWhenNoneIsBetter) {
  ScriptedReplanner replanner(std::nullopt);
  const Outcome outcome = train(two_by_two(), kSteps, &replanner);
  EXPECT_EQ(why_kept(outcome), "the hardware is as the plan expects");
  EXPECT_FALSE(has(outcome, Kind::kSwitched));
}

TEST_P(TrainerOver, APlanThatTrainsInAnotherWayIsRefused) {
  Plan other = one_and_three();
  other.training.optimizer.learning_rate = 0.5;
  ScriptedReplanner replanner(other);
  const Outcome outcome = train(two_by_two(), kSteps, &replanner);
  EXPECT_THAT(why_kept(outcome), HasSubstr("in another way"));
  EXPECT_FALSE(has(outcome, Kind::kSwitched));
}

// The name is for people: a file that was renamed is the same model.
TEST_P(TrainerOver, APlanThatCallsTheModelOtherwiseIsTaken) {
  Plan other = one_and_three();
  other.model = "renamed";
  ScriptedReplanner replanner(other);
  const Outcome outcome = train(two_by_two(), kSteps, &replanner);
  EXPECT_TRUE(has(outcome, Kind::kSwitched)) << why_kept(outcome);
}

TEST_P(TrainerOver, APlanForOtherRanksIsRefused) {
  ScriptedReplanner replanner(make_plan({{{4}}, {}, 3}));
  EXPECT_THAT(why_kept(train(two_by_two(), kSteps, &replanner)),
              HasSubstr("it is for 1 ranks, the job has 4"));
}

TEST_P(TrainerOver, AMoveThatDoesNotPayWithinTheHorizonIsNotMade) {
  ScriptedReplanner replanner(one_and_three(), 0.4999);
  const Outcome outcome = train(two_by_two(), kSteps, &replanner, {1e-9, 2, 600, 0});
  EXPECT_THAT(why_kept(outcome), HasSubstr("moving takes about"));
  EXPECT_FALSE(has(outcome, Kind::kSwitched));
}

TEST_P(TrainerOver, APlanThatSavesTooLittleIsKeptOutWithItsFigures) {
  ScriptedReplanner replanner(one_and_three(), 0.49);
  const Outcome outcome = train(two_by_two(), kSteps, &replanner);
  EXPECT_EQ(why_kept(outcome), "the best plan saves 2.0% of a step, less than 3.0%");
  EXPECT_FALSE(has(outcome, Kind::kSwitched));
}

TEST_P(TrainerOver, WithoutABudgetNothingMoves) {
  ScriptedReplanner replanner(one_and_three());
  const Outcome outcome = train(two_by_two(), kSteps, &replanner, {3600, 0, 600});
  EXPECT_THAT(why_kept(outcome), HasSubstr("0 moves within 600 s"));
  EXPECT_FALSE(has(outcome, Kind::kSwitched));
}

TEST_P(TrainerOver, ARankThatCannotHaveTheNewPlanKeepsAllOnTheOldOne) {
  for (const int unable : {0, 3}) {
    ScriptedReplanner replanner(one_and_three());
    const Outcome outcome = train(two_by_two(), kSteps, &replanner, {}, unable);
    EXPECT_FALSE(has(outcome, Kind::kSwitched));
    EXPECT_THAT(why_kept(outcome),
                HasSubstr(unable == 0 ? "out of memory" : "a rank could not prepare"));
  }
}

TEST_P(TrainerOver, TrainingGoesOnWhereTheReplannerThrows) {
  ThrowingReplanner replanner;
  EXPECT_EQ(why_kept(train(two_by_two(), kSteps, &replanner)), "out of memory");
}

TEST_P(TrainerOver, TrainingGoesOnWhileAPlanIsSought) {
  EndlessReplanner replanner;
  const Outcome outcome = train(two_by_two(), kSteps, &replanner);
  EXPECT_TRUE(replanner.started);
  EXPECT_FALSE(has(outcome, Kind::kSwitched));
}

TEST_P(TrainerOver, WhenOneRankAsksAllStopAfterTheSameStep) {
  const Plan plan = two_by_two();
  std::vector<std::int64_t> last(4, -1);
  GetParam().run(4, [&](Transport& transport) {
    const auto executors = []() -> Result<std::unique_ptr<Executor>> {
      return std::unique_ptr<Executor>(std::make_unique<FakeExecutor>());
    };
    auto trainer = Trainer::create(plan, transport.rank(), transport, executors);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    while (!(*trainer)->stops()) {
      if (transport.rank() == 2 && (*trainer)->next_step() == 7) (*trainer)->ask_to_stop();
      ASSERT_TRUE((*trainer)->run_step().ok());
    }
    last[static_cast<std::size_t>(transport.rank())] = (*trainer)->next_step();
  });
  EXPECT_EQ(last, std::vector<std::int64_t>(4, 8));
}

TEST(SwitchBudget, AllowsSoManyMovesInAnyWindow) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  SwitchBudget budget({3600, 2, 600});
  EXPECT_TRUE(budget.allows(0));
  budget.spend(0);
  EXPECT_TRUE(budget.allows(100 * kSecond));
  budget.spend(100 * kSecond);
  EXPECT_FALSE(budget.allows(101 * kSecond));
  EXPECT_FALSE(budget.allows(599 * kSecond));
  EXPECT_TRUE(budget.allows(600 * kSecond));
  budget.spend(650 * kSecond);
  EXPECT_FALSE(budget.allows(699 * kSecond));
  EXPECT_TRUE(budget.allows(700 * kSecond));
}

}  // namespace
}  // namespace agpcs
