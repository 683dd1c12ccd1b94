// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_problem.h"

#include "ir/strategy/plan_against.h"
#include "planner/bound/lower_bound.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/refine/dqn.h"
#include "tests/planner/refine/search_problems.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs::testing {
namespace {

using ::testing::HasSubstr;

TEST(PlanProblem, TheFastestOfAllSeedersWins) {
  const auto problem = problem_of(chain(12, 512), fast_and_slow(), 256);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  ASSERT_EQ(planned->seeders.size(), 6u);
  for (const Attempt& attempt : planned->seeders) {
    if (attempt.name == "even") continue;   // for models that fit no device
    if (attempt.name == "teams") continue;  // only if asked for (ProblemOptions::choose_teams)
    ASSERT_TRUE(attempt.step_seconds.has_value()) << attempt.name << ": " << attempt.why_not;
    EXPECT_LE(planned->best.estimate.step_seconds, *attempt.step_seconds) << attempt.name;
  }
  ASSERT_EQ(planned->baselines.size(), 2u);
  EXPECT_EQ(planned->baselines[0].name, "data_parallel");
  EXPECT_EQ(planned->baselines[1].name, "degree");
  EXPECT_LE(planned->best.estimate.step_seconds, *planned->baselines[0].step_seconds);
}

TEST(PlanProblem, ThePlanVerifiesReadsBackAndHasWhatIsExpected) {
  const auto problem = problem_of(chain(6), fast_and_slow(), 48);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const Plan& plan = planned->best.plan;
  EXPECT_EQ(verify_plan_against(plan, problem->graph, problem->cluster).message(), "");
  const std::string text = print_plan(plan);
  const auto again = parse_plan(text, "p.plan");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(print_plan(*again), text);
  EXPECT_THAT(text, HasSubstr("\nexpect\n"));
  EXPECT_EQ(plan.made_by.refiner, "none");
}

TEST(PlanProblem, TwiceTheSameBytes) {
  const auto problem = problem_of(chain(9), fast_and_slow(), 96);
  PlanOptions options;
  options.seed = 3;
  EXPECT_EQ(print_plan(plan_problem(*problem, options)->best.plan),
            print_plan(plan_problem(*problem, options)->best.plan));
}

TEST(PlanProblem, GradientsThatTravelInHalfTheBytesShortenAStepThatWaitsForThem) {
  // Sums take nearly all of the step: 4 layers of 4 MB over links of 10 MB/s.
  const Cluster cluster = cluster_of(
      "kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "host a gpu 1 nic=1e7\nhost b gpu 1 nic=1e7\n");
  const auto plain = problem_of(chain(4, 1024), cluster, 1024);
  const auto rounded = problem_of(chain(4, 1024), cluster, 1024, {}, DType::kBf16);
  const auto on_both = [](const Problem& problem) {
    return evaluate(problem, on_all(problem), MadeBy()).value();
  };
  const Evaluated before = on_both(*plain), after = on_both(*rounded);
  EXPECT_NEAR(after.estimate.step_seconds / before.estimate.step_seconds, 0.5, 0.01);
  EXPECT_NEAR(static_cast<double>(after.estimate.bytes_sent) /
                  static_cast<double>(before.estimate.bytes_sent),
              0.5, 0.01);
  EXPECT_EQ(after.plan.buckets.front().type, DType::kFp32);
  EXPECT_EQ(verify_plan_against(after.plan, rounded->graph, rounded->cluster).message(), "");
  EXPECT_LE(lower_bound(*rounded).any.seconds, after.estimate.step_seconds);
  const auto planned = plan_problem(*rounded, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->best.plan.training.wire_type, DType::kBf16);
  EXPECT_THAT(print_plan(planned->best.plan), HasSubstr(" wire-type=bf16\n"));
}

TEST(PlanProblem, AWireTypeWithoutFp32GradientsIsRefused) {
  Graph graph = chain(2);
  Training training = training_of(graph, 8);
  training.precision = Precision::kFp16;
  training.wire_type = DType::kFp16;
  const auto problem = Problem::make(
      std::move(graph), cluster_of("kind gpu fp32=5e12 fp16=10e12\nhost a gpu 2\n"), training);
  ASSERT_FALSE(problem.ok());
  EXPECT_EQ(problem.status().code(), StatusCode::kUsage);
  EXPECT_EQ(problem.status().message(),
            "wire type fp16, but no gradients are fp32, in precision fp16\n"
            "  hint: without --wire-type gradients travel as they are");
}

TEST(PlanProblem, PlainDataParallelismHasOneFigure) {
  // As the baseline of any plan, and as the plan that `--seeder equal --refiner none` writes.
  for (const std::int64_t asked : {std::int64_t{0}, std::int64_t{5'000'000}}) {
    ProblemOptions wanted;
    wanted.bucket_bytes = asked;
    const auto problem = problem_of(chain(16, 1024), fast_and_slow(), 4096, wanted);
    PlanOptions options;
    options.seeders = {"equal"};
    const auto planned = plan_problem(*problem, options);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(planned->best.estimate.step_seconds, *planned->baselines[0].step_seconds);
    EXPECT_EQ(planned->best.plan.made_by.seeder, "equal");
    const std::int64_t most = asked > 0 ? asked : kUsualBucketBytes;
    for (const PlanBucket& bucket : planned->best.plan.buckets) EXPECT_LE(bucket.bytes(), most);
    options.all_reduce = AllReduceChoice::kTree;  // who asks for an algorithm gets it
    const auto trees = plan_problem(*problem, options);
    for (const PlanBucket& bucket : trees->best.plan.buckets) {
      EXPECT_EQ(bucket.algorithm, AllReduce::kTree);
    }
  }
}

TEST(PlanProblem, OnlyTheSeedersAskedForRun) {
  const auto problem = problem_of(chain(9), fast_and_slow(), 96);
  PlanOptions options;
  options.seeders = {"metis"};
  std::vector<std::string> steps;
  options.progress = [&](std::string_view what, int number, int of) {
    steps.push_back(std::string(what) + " " + std::to_string(number) + "/" + std::to_string(of));
  };
  const auto planned = plan_problem(*problem, options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->best.plan.made_by.seeder, "metis");
  EXPECT_GE(planned->best.plan.stages.size(), 2u);
  EXPECT_EQ(steps, (std::vector<std::string>{"metis 1/3", "baseline data_parallel 2/3",
                                             "baseline degree 3/3"}));
}

TEST(PlanProblem, TheNumberOfMicroBatchesCanBeFixed) {
  ProblemOptions options;
  options.micro_batches = 6;
  const auto problem = problem_of(chain(9), fast_and_slow(), 96, options);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->best.plan.micro_batches, 6);
}

TEST(PlanProblem, SlowDevicesAreLeftOutWhereTheNetworkEatsTheirHelp) {
  const auto problem = problem_of(chain(6, 1024), fast_and_slow("16e9", "1e6"), 32);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  for (const PlanStage& stage : planned->best.plan.stages) {
    for (const std::string& device : stage.devices) EXPECT_THAT(device, HasSubstr("a/"));
  }
}

TEST(PlanProblem, APipelineIsFoundWhereOneDeviceCannotHoldTheModel) {
  // 8 layers of 4 MB: with gradients 67 MB of weights alone, on devices of 50 MB.
  const auto problem = problem_of(chain(8, 1024), fast_and_slow("50e6"), 32);
  const auto planned = plan_problem(*problem, {});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_GE(planned->best.plan.stages.size(), 2u);
  EXPECT_THAT(planned->baselines[0].why_not, HasSubstr("lacks"));
  EXPECT_FALSE(planned->baselines[0].step_seconds.has_value());
}

/// The plan with `refiner`; `budget` evaluations.
Result<Planned> refined(const Problem& problem, std::string_view refiner, std::int64_t budget,
                        PlanOptions options = {}) {
  const std::unique_ptr<Refiner> made = std::move(*make_refiner(refiner));
  options.refiner = made.get();
  options.budget = budget;
  return plan_problem(problem, options);
}

TEST(RefinedPlan, IsNeverWorseThanThatOfAPartOfTheClusterWhereOnlyPipelinesFit) {
  const std::string fast = "kind fast memory=40e6 bandwidth=900e9 fp32=15e12\n";
  const std::string slow = "kind slow memory=40e6 bandwidth=300e9 fp32=5e12\n";
  const std::string a = "host a fast 2 nic=3e9\n", b = "host b fast 2 nic=3e9\n";
  const std::string c = "host c slow 2 nic=1e9\n";
  const auto seconds = [](const std::string& cluster) {
    const auto problem = problem_of(chain(16, 1024), cluster_of(cluster), 96);
    const auto planned = refined(*problem, "dqn", 20);
    EXPECT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_GE(planned->best.plan.stages.size(), 2u);
    return planned->best.estimate.step_seconds;
  };
  const double whole = seconds(fast + slow + a + b + c);
  EXPECT_LE(whole, seconds(fast + a + b));
  EXPECT_LE(whole, seconds(fast + slow + a + c));
}

TEST(RefinedPlan, IsNeverWorseThanTheBestSeedAndSaysHowItWasMade) {
  for (const RefinerEntry& entry : refiners()) {
    for (std::uint64_t number = 0; number < 5; ++number) {
      const auto problem = search_problem(number);
      const auto planned = refined(*problem, entry.name, 40);
      const auto seed = plan_problem(*problem, {});
      ASSERT_EQ(planned.status().message(), seed.status().message()) << number;
      const Refinement& refinement = planned->refinement;
      EXPECT_EQ(refinement.start_seconds, seed->best.estimate.step_seconds);
      EXPECT_LE(planned->best.estimate.step_seconds, seed->best.estimate.step_seconds);
      EXPECT_GE(planned->best.estimate.step_seconds, planned->bound->any.seconds);
      const MadeBy& made_by = planned->best.plan.made_by;
      EXPECT_EQ(made_by.refiner, entry.name);
      EXPECT_EQ(made_by.seeder, seed->best.plan.made_by.seeder);
      EXPECT_EQ(made_by.evaluations, entry.name == "none" ? 0 : 40);
      EXPECT_EQ(refinement.budget, 40);
      EXPECT_FALSE(made_by.interrupted);
    }
  }
}

TEST(RefinedPlan, IsBetterThanTheBestSeedWhereThereIsRoom) {
  const auto problem = search_problem(2);
  const auto planned = refined(*problem, "dqn", 500);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_LT(planned->best.estimate.step_seconds, 0.99 * *planned->refinement.start_seconds);
}

TEST(RefinedPlan, HasTheSameBytesForAnyNumberOfThreads) {
  for (const std::string_view refiner : {"dqn", "greedy", "anneal", "random"}) {
    for (std::uint64_t number = 0; number < 4; ++number) {
      const auto problem = search_problem(number);
      std::string first;
      for (const int threads : {1, 2, 8}) {
        PlanOptions options;
        options.threads = threads;
        const auto planned = refined(*problem, refiner, 400, options);  // beyond the first round
        ASSERT_TRUE(planned.ok()) << planned.status().message();
        const std::string text = print_plan(planned->best.plan);
        if (first.empty()) first = text;
        EXPECT_EQ(text, first) << refiner << ", problem " << number << ", " << threads;
      }
    }
  }
}

/// With the default budget, a search that ends with a pipeline is made four times, and the best of
/// what they found climb.
TEST(RefinedPlan, OfSearchesSideBySideHasTheSameBytesAsOfOneAfterTheOther) {
  const auto problem = search_problem(2);
  std::vector<std::string> texts;
  for (const int threads : {1, 2, 5}) {
    PlanOptions options;
    options.threads = threads;
    std::int64_t made = 0;
    options.search_progress = [&](std::int64_t now, std::int64_t of, double seconds) {
      EXPECT_GT(now, made) << "searches that run at a time are counted together";
      made = now;
      EXPECT_LE(now, of);
      EXPECT_GT(seconds, 0);
    };
    const auto planned = refined(*problem, "dqn", 0, options);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(made, planned->best.plan.made_by.evaluations);
    EXPECT_EQ(planned->refinement.budget, 8000) << "of four searches, and of four climbs";
    texts.push_back(print_plan(planned->best.plan) + print_search_log(planned->refinement.log));
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

TEST(RefinedPlan, TheSeedDecides) {
  const auto problem = problem_of(chain(12, 512), fast_and_slow(), 256);
  std::vector<std::string> logs;
  for (const std::uint64_t seed : {1, 1, 2}) {
    PlanOptions options;
    options.seed = seed;
    const auto planned = refined(*problem, "dqn", 1200, options);
    logs.push_back(print_plan(planned->best.plan) + print_search_log(planned->refinement.log));
  }
  EXPECT_EQ(logs[0], logs[1]);
  EXPECT_NE(logs[0], logs[2]);
}

TEST(RefinedPlan, InterruptedBeforeItSearchesIsTheBestSeed) {
  const auto problem = problem_of(chain(12, 512), fast_and_slow(), 256);
  std::atomic<bool> interrupted = false;
  PlanOptions options;
  options.interrupted = &interrupted;
  options.progress = [&](std::string_view what, int, int) {
    interrupted = interrupted || what == "baseline data_parallel";
  };
  const auto planned = refined(*problem, "dqn", 500, options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_THAT(print_plan(planned->best.plan),
              HasSubstr(" refiner=dqn evaluations=0 interrupted=yes\n"));
  EXPECT_TRUE(planned->best.plan.made_by.interrupted);
  Plan plan = planned->best.plan;
  const auto seed = plan_problem(*problem, {});
  plan.made_by = seed->best.plan.made_by;
  EXPECT_EQ(print_plan(plan), print_plan(seed->best.plan));
}

/// Plans with an interrupt when seeder `when` begins; empty: when the first plan is found.
Result<Planned> interrupted_at(const Problem& problem, std::string_view when,
                               PlanOptions options = {}) {
  std::atomic<bool> interrupted = false;
  options.interrupted = &interrupted;
  options.progress = [&](std::string_view what, int, int) {
    interrupted = interrupted || what == when;
  };
  options.found = [&](double, std::string_view) { interrupted = interrupted || when.empty(); };
  return plan_problem(problem, options);
}

TEST(Seeding, InterruptedAtOnceGivesTheFirstPlan) {
  for (std::uint64_t number = 0; number < 3; ++number) {
    const auto problem = search_problem(number);
    for (const int threads : {1, 2}) {
      PlanOptions options;
      options.threads = threads;
      const auto planned = interrupted_at(*problem, "", options);
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      EXPECT_TRUE(planned->seeders.empty());
      const Plan& plan = planned->best.plan;
      EXPECT_EQ(verify_plan_against(plan, problem->graph, problem->cluster).message(), "");
      EXPECT_THAT(print_plan(plan), HasSubstr(" refiner=none evaluations=0 interrupted=yes\n"));
      EXPECT_EQ(plan.made_by.seeder, number == 0 ? "data_parallel" : "even");
    }
  }
}

TEST(Seeding, InterruptedLaterGivesTheBestOfTheSeedersBefore) {
  const auto problem = problem_of(chain(12, 512), fast_and_slow(), 256);
  const auto planned = interrupted_at(*problem, "linear");
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  ASSERT_EQ(planned->seeders.size(), 2u) << "data_parallel and metis";
  EXPECT_TRUE(planned->best.plan.made_by.interrupted);
  PlanOptions both;
  both.seeders = {"data_parallel", "metis"};
  EXPECT_EQ(planned->best.estimate.step_seconds,
            plan_problem(*problem, both)->best.estimate.step_seconds);
}

TEST(Seeding, InterruptedBeforeAnythingFitsGoesOnUntilSomethingDoes) {
  const auto problem = problem_of(chain(8, 1024), fast_and_slow("50e6"), 32);
  PlanOptions options;
  options.seeders = {"data_parallel", "linear", "metis"};  // the first has none that fits
  const auto planned = interrupted_at(*problem, "data_parallel", options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  ASSERT_EQ(planned->seeders.size(), 2u);
  EXPECT_EQ(planned->best.plan.made_by.seeder, "linear");
  EXPECT_TRUE(planned->best.plan.made_by.interrupted);
}

TEST(Seeding, TellsOfAPlanAndTheBoundBeforeAnySeederBegins) {
  const auto problem = problem_of(chain(12, 512), fast_and_slow(), 256);
  std::vector<std::string> told;
  PlanOptions options;
  options.found = [&](double seconds, std::string_view seeder) {
    EXPECT_GT(seconds, 0);
    told.push_back("found by " + std::string(seeder));
  };
  options.bounded = [&](const LowerBound&) { told.emplace_back("bounded"); };
  options.progress = [&](std::string_view what, int, int) { told.emplace_back(what); };
  for (const int threads : {1, 2}) {
    options.threads = threads;
    told.clear();
    const auto planned = plan_problem(*problem, options);
    EXPECT_EQ(print_plan(planned->best.plan), print_plan(plan_problem(*problem, {})->best.plan));
    ASSERT_GE(told.size(), 4u);
    EXPECT_EQ(told[0], "found by data_parallel");
    EXPECT_EQ(told[1], "bounded");
    EXPECT_EQ(told[2], "data_parallel");
    EXPECT_THAT(told, ::testing::IsSupersetOf({"found by metis", "found by linear"}));
  }
}

TEST(RefinedPlan, AnInterruptLeavesNothingBehind) {
  const auto problem = search_problem(1);
  for (const RefinerEntry& entry : refiners()) {
    if (entry.name == "none") continue;
    const std::string whole = print_plan(refined(*problem, entry.name, 200)->best.plan);
    std::vector<std::string> parts;
    for (int run = 0; run < 2; ++run) {
      std::atomic<bool> interrupted = false;
      PlanOptions options;
      options.interrupted = &interrupted;
      options.search_progress = [&](std::int64_t made, std::int64_t of, double seconds) {
        EXPECT_EQ(of, 200);
        EXPECT_GT(seconds, 0);
        interrupted = made >= 60;
      };
      const auto planned = refined(*problem, entry.name, 200, options);
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      EXPECT_TRUE(planned->best.plan.made_by.interrupted) << entry.name;
      EXPECT_LT(planned->best.plan.made_by.evaluations, 200) << entry.name;
      parts.push_back(print_plan(planned->best.plan));
    }
    EXPECT_EQ(parts[0], parts[1]) << entry.name;
    EXPECT_EQ(print_plan(refined(*problem, entry.name, 200)->best.plan), whole) << entry.name;
  }
}

TEST(RefinedPlan, AnInterruptAfterTheLastEvaluationIsNone) {
  const auto problem = search_problem(0);
  std::atomic<bool> interrupted = false;
  PlanOptions options;
  options.interrupted = &interrupted;
  options.search_progress = [&](std::int64_t made, std::int64_t of, double) {
    interrupted = made == of;
  };
  const auto planned = refined(*problem, "dqn", 50, options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_TRUE(interrupted);
  EXPECT_FALSE(planned->best.plan.made_by.interrupted);
}

TEST(RefinedPlan, NothingImprovesALayout) {
  const auto problem = problem_of(chain(12, 512), fast_and_slow(), 256);
  PlanOptions options;
  options.layout = *parse_layout("a/0|b/0", problem->cluster);
  const auto planned = refined(*problem, "dqn", 100, options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->best.plan.made_by.refiner, "none");
  EXPECT_EQ(planned->best.plan.made_by.evaluations, 0);
  EXPECT_EQ(planned->best.plan.stages.size(), 2u);
}

TEST(DefaultBudget, IsSmallerForLargerProblemsAndNeverBelow100) {
  const auto small = problem_of(chain(2), fast_and_slow(), 16);
  const auto large = problem_of(chain(8000, 8), fast_and_slow(), 4096);
  const auto start = [](const Problem& problem, std::int64_t micro_batches) {
    const std::string shares = std::to_string(problem.training.batch / micro_batches);
    return strategy_of(
        "micro-batches " + std::to_string(micro_batches) + "\nstage a/0=" + shares + " : *\n",
        problem.graph, problem.cluster);
  };
  EXPECT_EQ(default_budget(*small, start(*small, 1)), 1000);
  const std::int64_t some = default_budget(*large, start(*large, 1));
  EXPECT_LT(some, 1000);
  EXPECT_LT(default_budget(*large, start(*large, 4096)), some);
  EXPECT_GE(default_budget(*large, start(*large, 4096)), 100);
}

TEST(DefaultBudget, IsLargerWhereFewOperatorsMeetManyDevices) {
  const auto on = [](int layers, int hosts) {
    std::string text = "kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n";
    for (int host = 0; host < hosts; ++host) {
      text += "host h" + std::to_string(host) + " gpu 8 nic=3e9\n";
    }
    const auto problem = problem_of(chain(layers, 8), cluster_of(text), 4096);
    return default_budget(*problem, on_all(*problem));
  };
  EXPECT_EQ(on(20, 32), 1000);
  EXPECT_EQ(on(20, 64), 1500);
  EXPECT_LT(on(2000, 64), 1000);
  EXPECT_EQ(on(20, 128), 1500);
}

TEST(Problem, BadNumbersAreRefused) {
  const Graph graph = chain(2);
  ProblemOptions options;
  EXPECT_THAT(Problem::make(graph, fast_and_slow(), training_of(graph, 0)).status().message(),
              HasSubstr("no batch to plan for"));
  options.micro_batches = 33;
  EXPECT_EQ(
      Problem::make(graph, fast_and_slow(), training_of(graph, 32), options).status().message(),
      "a batch of 32 does not make 33 micro-batches");
  Training training = training_of(graph, 32);
  training.precision = Precision::kBf16;
  EXPECT_THAT(Problem::make(graph, fast_and_slow(), training).status().message(),
              HasSubstr("device kind 'fast' has no peak for precision 'bf16'"));
}

}  // namespace
}  // namespace agpcs::testing
