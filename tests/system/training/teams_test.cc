// SPDX-License-Identifier: Apache-2.0
// Training by a plan whose replicas are teams equals training alone: losses over 20 steps and final
// parameters, with ranks that are threads and with processes that agpcs-run starts.
#include "tests/system/training/teams.h"

#include "tests/system/training/processes.h"

#include <agpcs/loopback.h>
#include <agpcs/replanner.h>
#include <agpcs/replayer.h>
#include <agpcs/trainer.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

class TeamsOf : public Teams, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override { read(GetParam()); }
};

TEST_P(TeamsOf, TrainAsOneRankAloneDoes) {
  const Trained want = train(alone(training()));
  EXPECT_NE(want.losses.front(), want.losses.back());
  for (const Shapes& shapes : std::vector<Shapes>{{{{4}, {1, 1}}},
                                                  {{{4}, {5, 3, 4}}},
                                                  {{{3, 1}, {1, 1}}},
                                                  {{{4}, {5, 3}, true}, {{4}}},
                                                  {{{4}}, {{4}, {5, 3}}},
                                                  {{{4}, {1, 1}}, {{4}, {5, 3, 4}, true}},
                                                  {{{4}, {5, 3, 4}}, {{1, 3}, {3, 5}}}}) {
    expect_equal(shapes, training(), want);
  }
  // Links that cost next to nothing: what is divided, and how often members exchange, is another.
  expect_equal({{{3, 1}, {5, 3, 4}}, {{4}, {1, 1}, true}}, training(), want, 1, 1e15);
  EXPECT_GT(divided_, 20);
  for (const TeamExchange exchange : {TeamExchange::kAllReduce, TeamExchange::kAllGather,
                                      TeamExchange::kReduceScatter, TeamExchange::kAllToAll}) {
    if (GetParam() == "conv" && exchange == TeamExchange::kAllToAll)
      continue;  // it has no use of it
    EXPECT_EQ(exchanges_.count(exchange), 1u) << name_of(exchange);
  }
}

TEST_P(TeamsOf, TrainAsOneRankAloneDoesWithClippedGradients) {
  Training clipped = training();
  clipped.optimizer.max_norm = 0.1;
  const Trained want = train(alone(clipped));
  for (const Shapes& shapes :
       std::vector<Shapes>{{{{4}, {5, 3}}}, {{{3, 1}, {1, 1}}, {{4}, {5, 3, 4}}}}) {
    expect_equal(shapes, clipped, want);
  }
}

// A batch of the set is not full, and its samples are none of a micro-batch of some stages.
TEST_P(TeamsOf, EvaluateAsOneRankAloneDoes) {
  const Evaluation want = evaluate(alone(training()));
  EXPECT_GT(want.counted, 0);
  for (const Shapes& shapes : std::vector<Shapes>{{{{4}, {5, 3, 4}}},
                                                  {{{3, 1}, {1, 1}}},
                                                  {{{4}, {5, 3}, true}, {{1, 3}}},
                                                  {{{4}}, {{4}, {5, 3, 4}}},
                                                  {{{1, 3}, {1, 1}}, {{4}, {5, 3}, true}}}) {
    expect_equal_evaluation(shapes, want);
  }
  expect_equal_evaluation({{{3, 1}, {5, 3, 4}}, {{4}, {1, 1}, true}}, want, 1e15);
}

INSTANTIATE_TEST_SUITE_P(Models, TeamsOf, ::testing::Values("gpt", "llama", "moe", "bert", "conv"),
                         [](const auto& param) { return param.param; });

// Labels that do not count, smoothed ones, those that the model makes of its input, and yes or no.
TEST_F(Teams, EvaluateEveryLossAsOneRankAloneDoes) {
  std::map<std::string, Loss> losses = {{"words", loss_by_shape(0)},
                                        {"tagger", loss_by_shape(1, 0.1)},
                                        {"pixels", loss_by_shape(2)},
                                        {"regression", {LossKind::kMse, {}}},
                                        {"binary", {LossKind::kBceWithLogits, {}}}};
  losses["words"].next_token = "auto";
  for (const auto& [name, loss] : losses) {
    SCOPED_TRACE(name);
    read(name, {}, loss);
    const Evaluation want = evaluate(alone(training()));
    EXPECT_EQ(want.counted == 0, name == "regression");
    for (const double link : {1e9, 1e15}) {
      expect_equal_evaluation({{{4}, {1, 1}}}, want, link);
      expect_equal_evaluation({{{3, 1}, {1, 1}}, {{4}, {5, 3}}}, want, link);
    }
  }
  EXPECT_GT(divided_, 10);
}

TEST_F(Teams, EvaluateByRunningStatistics) {
  read("bn");
  const Evaluation want = evaluate(alone(training()));
  for (const std::vector<std::int64_t>& parts : {std::vector<std::int64_t>{1, 1}, {2, 3}}) {
    expect_equal_evaluation({{{4}, parts}}, want, 1e15);
  }
}

TEST_F(Teams, NameTheMemberThatWentAway) {
  read("gpt");
  const Plan plan = testing::plan_with_teams(graph_, training(), {{{4}, {1, 1}}}, kMicroBatches);
  LoopbackHub hub(2);
  std::vector<std::thread> threads;
  Status said;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = hub.join(rank);
      const auto executor = make_torch_executor(graph_, {});
      const auto replayer = Replayer::create(plan, rank, *transport, *executor);
      ASSERT_TRUE(replayer.ok()) << replayer.status().message();
      if (rank == 0) said = (*replayer)->run_step().status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(said.code(), StatusCode::kPeerFailed);
  EXPECT_THAT(said.message(),
              ::testing::ContainsRegex(
                  "^rank 0 \\(a/0\\): forward mb=0: [a-z_]+ of [0-9]+ bytes over ranks "
                  "0,1: rank 1 went away$"));
}

/// Gives the next of some plans each time it is asked.
class PlansInTurn final : public Replanner {
 public:
  explicit PlansInTurn(std::vector<Plan> plans) : plans_(std::move(plans)) {}
  Result<std::optional<Replan>> replan(const Plan& /*running*/, const HardwareReport& /*hardware*/,
                                       const std::atomic<bool>& /*cancel*/) override {
    if (next_ == plans_.size()) return std::optional<Replan>();
    return std::optional<Replan>(Replan{plans_[next_++], 0.5, 0.1});
  }

 private:
  const std::vector<Plan> plans_;
  std::size_t next_ = 0;
};

// All plans expect next to nothing of a/0, so the first exchanges show that it is slow.
TEST_F(Teams, AreLeftAndJoinedWhileAJobTrains) {
  read("gpt");
  Training training = this->training();
  training.statistics_every = 1;
  std::vector<Plan> plans;
  for (const Shapes& shapes : std::vector<Shapes>{
           {{{3, 1}}, {{1, 3}}}, {{{4}, {1, 1}}, {{4}, {5, 3}}}, {{{4}}, {{4}, {5, 3, 4}}}}) {
    plans.push_back(testing::plan_with_teams(graph_, training, shapes, kMicroBatches));
    for (Expectation& line : plans.back().expect) {
      if (line.name == "utilization a/0") line.value = 0.001;
    }
  }
  PlansInTurn replanner({plans.begin() + 1, plans.end()});
  constexpr int kMost = 1 << 20, kAfter = 5;  // a busy machine takes many steps to notice
  LoopbackHub hub(4);
  std::vector<double> losses;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = hub.join(rank);
      TrainerOptions options;
      std::size_t moves = 0;
      options.on_event = [&](const TrainerEvent& event) {
        moves += event.kind == TrainerEvent::Kind::kSwitched ? 1 : 0;
      };
      if (rank == 0) options.replanner = &replanner;
      const auto executors = [this]() -> Result<std::unique_ptr<Executor>> {
        TorchOptions made;
        made.seed = 11;
        made.threads = 1;
        return std::unique_ptr<Executor>(make_torch_executor(graph_, std::move(made)));
      };
      const auto trainer = Trainer::create(plans[0], rank, *transport, executors, options);
      ASSERT_TRUE(trainer.ok()) << trainer.status().message();
      for (int after = 0; !(*trainer)->stops() && (*trainer)->next_step() < kMost;) {
        if (moves + 1 == plans.size() && ++after == kAfter) (*trainer)->ask_to_stop();
        const auto report = (*trainer)->run_step();
        ASSERT_TRUE(report.ok()) << report.status().message();
        if (rank == 0) losses.push_back(report->loss);
      }
      EXPECT_EQ(moves + 1, plans.size());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto steps = static_cast<int>(losses.size());
  testing::expect_equal_training({losses, {}}, {train(alone(training), 1, steps).losses, {}},
                                 kTolerance);
}

TEST_F(Teams, TakeUnequalMicroBatches) {
  read("gpt");
  expect_equal({{{3, 1}, {1, 1}}, {{4}, {5, 3}}}, training(7), train(alone(training(7))));
}

TEST_F(Teams, AddUpSeveralBatchesAStep) {
  read("gpt");
  expect_equal({{{3, 1}, {5, 3}}, {{4}}}, training(), train(alone(training()), 3), 3);
}

TEST_F(Teams, LearnByAdam) {
  read("llama");
  Training adam = training();
  adam.optimizer = {};
  adam.optimizer.kind = OptimizerKind::kAdam;
  adam.optimizer.learning_rate = 0.003;
  adam.optimizer.epsilon = 1e-4;  // gradients that are 0 but for rounding move nothing
  expect_equal({{{4}, {5, 3}}, {{2, 2}, {1, 1}}}, adam, train(alone(adam)));
}

TEST_F(Teams, LeaveFrozenWeightsAsTheyAre) {
  read("gpt", {"wte", "h0_w_up0", "h1_b_qkv"});
  const Trained want = train(alone(training()));
  expect_equal({{{3, 1}, {5, 3}}, {{4}, {1, 1}}}, training(), want);
  EXPECT_EQ(want.values.count("h0_w_up0"), 0u);  // it is not learned
  EXPECT_EQ(want.values.count("h1_w_up0"), 1u);
}

/// Returns what a command that ends with `code` says on standard error.
std::string said_by(const std::string& command, int code, const std::filesystem::path& folder) {
  const std::string file = folder / "said.txt";
  const int status = std::system((command + " 2> " + file).c_str());
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, code) << command;
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

class RunTeams : public Teams {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(testing::kAgpcsRun)) GTEST_SKIP() << "agpcs-run is not built";
    read("gpt");
  }
  Trained run(const Shapes& shapes, int steps, const std::string& options) const {
    return testing::train_by_processes(
        testing::plan_with_teams(graph_, training(), shapes, kMicroBatches), model_, steps, folder_,
        "--transport loopback " + options);
  }
  std::string folder(const char* name) const { return folder_ / name; }
};

// Checkpoints have whole tensors: a plan with other teams, or without, goes on from them.
TEST_F(RunTeams, AreSavedAndResumedByAnyPlan) {
  const std::string options =
      "--schedule cosine --warmup 2 --accumulate 2 --check-replicas 2 --save " + folder("saved");
  const std::string resumes = options + " --resume " + folder("saved");
  const Trained want = run({{{4}}}, 12, "--schedule cosine --warmup 2 --accumulate 2");
  std::filesystem::remove_all(folder("parameters"));
  // All runs have a course of 12 steps; without the last checkpoint, others go on from step 8.
  run({{{3, 1}, {5, 3, 4}}}, 12, options + " --save-every 4");
  std::filesystem::remove_all(folder("saved") + "/step-00000012");
  std::filesystem::remove_all(folder("parameters"));
  const Trained got = run({{{4}, {1, 1}}, {{4}, {5, 3}}}, 12, resumes);
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    const double whole = want.losses[want.losses.size() - got.losses.size() + i];
    EXPECT_NEAR(got.losses[i], whole, kTolerance * whole);
  }
  testing::expect_equal_training({{}, got.values}, {{}, want.values}, kTolerance);
  std::filesystem::remove_all(folder("saved") + "/step-00000012");
  testing::expect_equal_training({{}, run({{{4}}, {{2, 2}}}, 12, resumes).values},
                                 {{}, want.values}, kTolerance);
  std::filesystem::remove_all(folder("saved") + "/step-00000012");
  const Shapes unlike = {{{3, 1}, {}, false, {{5, 3, 4}, {1, 1}}}};
  testing::expect_equal_training({{}, run(unlike, 12, resumes).values}, {{}, want.values},
                                 kTolerance);
}

std::string content_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(RunTeams, AreNamedWhereTrainingBeginsAndInTraces) {
  const Plan plan =
      testing::plan_with_teams(graph_, training(), {{{3, 1}, {1, 1}}, {{4}}}, kMicroBatches);
  const std::string file = folder("t.plan"), out = folder("out.txt"), trace = folder("t.json");
  std::ofstream(file) << print_plan(plan);
  said_by(fmt::format("{} {} {} --transport loopback --steps 3 --trace {} > {}", testing::kAgpcsRun,
                      file, model_, trace, out),
          0, folder_);
  EXPECT_THAT(content_of(out), HasSubstr("  s0 on a/0+a/1, a/2+a/3 (3:1); s1 on a/4 (4)\n"));
  for (const char* device : {"a/0", "a/1", "a/2", "a/3", "a/4"}) {
    EXPECT_THAT(content_of(trace), HasSubstr(device));
  }
}

struct ProcessCase {
  std::string model;
  Shapes shapes;
  std::string options = "";
};

TEST_F(RunTeams, OfProcessesTrainAsOneRankAloneDoes) {
  for (const ProcessCase& one : std::vector<ProcessCase>{
           {"gpt", {{{4}, {1, 1}}, {{4}, {5, 3, 4}, true}}},
           {"llama", {{{3, 1}, {5, 3}}}},
           {"gpt", {{{3, 1}, {}, false, {{5, 3, 4}, {1}}}}, "--transport gloo"},
           {"bert", {{{4}, {5, 3, 4}}}, "--transport gloo"},
           {"conv", {{{4}, {5, 3}, true}, {{4}}}, "--transport loopback"}}) {
    SCOPED_TRACE(one.model);
    read(one.model);
    const Plan plan = testing::plan_with_teams(graph_, training(), one.shapes, kMicroBatches);
    const std::filesystem::path folder = folder_ / one.model;
    std::filesystem::create_directories(folder);
    testing::expect_equal_training(
        testing::train_by_processes(plan, model_, kSteps, folder, one.options),
        train(alone(training())), kTolerance);
  }
}

}  // namespace
}  // namespace agpcs
