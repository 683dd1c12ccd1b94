// SPDX-License-Identifier: Apache-2.0
// Six steps equal three, a checkpoint, and three more: under the same plan to the last bit, under
// any other plan of the model to rounding.
#include "frontend/onnx/import_onnx.h"
#include "ir/plan/body/body.h"
#include "ir/plan/body/groups.h"
#include "runtime/job/move_cost.h"
#include "runtime/job/renumbered_groups.h"
#include "runtime/job/state_moves.h"
#include "runtime/support/state_part.h"
#include "tests/support/shard_plan.h"
#include "tests/support/temp_folder.h"
#include "tests/system/training/harness.h"
#include "tools/run/checkpoint.h"

#include <agpcs/digest.h>
#include <agpcs/loopback.h>
#include <agpcs/replayer.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::int64_t kBatch = 8;
constexpr std::chrono::milliseconds kLimit{60000};

using Shares = std::vector<std::vector<std::int64_t>>;

struct Case {
  std::string name, model, optimizer;
  Shares before, after;
  std::int64_t micro_batches_before = 2, micro_batches_after = 2;
  /// The weights by which ranks divide state (tests/support/shard_plan.h); empty: they do not.
  std::vector<std::int64_t> weights_before = {}, weights_after = {};
  StateLevel level = StateLevel::kOptimizer;  ///< what they divide
  /// By stage: the parts of members of teams; empty: replicas are single ranks.
  Shares parts_before = {}, parts_after = {};
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }  // NOLINT: GoogleTest names it

// What the ranks have at the end; values are those of the first of the replicas.
using Learned = std::map<std::pair<std::string, std::string>, std::vector<float>>;

struct Job {
  Plan plan;
  std::int64_t first_step = 0, steps = 0;
  std::string resume, save;  ///< folders; "": not
  Learned learned;
  std::vector<double> losses;
  std::vector<Status> said;  ///< by rank
  Learned of_stage;          ///< parameters, of whichever replica came first
};

class Resume : public ::testing::Test {
 protected:
  void SetUp() override { std::ofstream(folder_ / "bn.onnxtxt") << testing::kBatchNorm; }
  Graph graph_of(const std::string& model) {
    loss_ = testing::training_of(kBatch).loss;
    if (model != "tied") return testing::training_graph(path_of(model));
    loss_ = {};
    loss_.by_shape = true;
    return testing::training_graph(path_of(model), loss_);
  }
  std::string path_of(const std::string& model) const {
    return model == "bn" ? (folder_ / "bn.onnxtxt").string()
                         : "tests/system/training/models/" + model + ".onnx";
  }

  Plan plan_of(const Graph& graph, const std::string& optimizer, const Shares& shares,
               std::int64_t micro_batches, std::int64_t batch = kBatch,
               const std::vector<std::int64_t>& weights = {},
               StateLevel level = StateLevel::kOptimizer, const Shares& parts = {}) {
    Training training = testing::training_of(batch);
    training.loss = loss_;
    if (optimizer == "adam") {
      training.optimizer = {};
      training.optimizer.kind = OptimizerKind::kAdam;
      training.optimizer.learning_rate = 0.003;
    } else if (optimizer == "sgd") {
      training.optimizer.momentum = 0;
    }
    if (!parts.empty()) {
      std::vector<testing::TeamsShape> stages;
      for (const auto& stage : shares) stages.push_back({stage, parts[stages.size()]});
      return testing::plan_with_teams(graph, training, stages, micro_batches);
    }
    Plan plan = testing::plan_with(graph, training, shares, micro_batches);
    return weights.empty() ? plan : testing::divided(graph, std::move(plan), weights, level);
  }

  Status run_rank(const Graph& graph, const std::string& model, Job& job, int rank,
                  Transport& transport) {
    const auto executor = executor_of(graph);
    ReplayOptions replay;
    replay.limit = kLimit;
    replay.first_step = job.first_step;
    AGPCS_TRY(const auto replayer, Replayer::create(job.plan, rank, transport, *executor, replay));
    if (!job.resume.empty()) {
      std::optional<FoundCheckpoint> found;
      if (rank == 0) {
        AGPCS_TRY(found, find_checkpoint(job.resume));
        AGPCS_RETURN_IF_ERROR(check_resumable(*found, job.plan, 1, {}));
      }
      AGPCS_RETURN_IF_ERROR(
          restore_checkpoint(found ? &*found : nullptr, *executor, transport, kLimit));
    }
    std::unique_ptr<CheckpointSaver> saver;
    if (!job.save.empty()) {
      const CheckpointOptions to{job.save, 2, path_of(model), 11, kLimit};
      AGPCS_TRY(saver, CheckpointSaver::open(to, graph, rank, job.first_step));
    }
    for (std::int64_t i = 0; i < job.steps; ++i) {
      AGPCS_TRY(const StepReport report, replayer->run_step());
      if (rank == 0) job.losses.push_back(report.loss);
    }
    if (saver) {
      AGPCS_RETURN_IF_ERROR(
          saver->save(*executor, transport, job.plan, job.first_step + job.steps));
    }
    return note_learned(graph, job, rank, *executor);
  }

  // Adds what a rank has learned to what the job has.
  Status note_learned(const Graph& graph, Job& job, int rank, const Executor& executor) {
    const std::lock_guard lock(mutex_);
    const PlanStage& stage =
        job.plan.stages[static_cast<std::size_t>(job.plan.stage_of_rank(rank))];
    for (const StateItem& item : executor.state()) {
      const ElementRange has = item.range();
      std::vector<float> values(static_cast<std::size_t>(item.size()));
      AGPCS_RETURN_IF_ERROR(executor.read_state(item, has.begin, has.size(), values.data()));
      // Running statistics are each replica's own. Other values are equal where several ranks have
      // them, and a rank may be the only one that has them.
      const bool own = graph.tensor(graph.find_tensor(item.tensor)).kind == TensorKind::kState;
      if (!own || replica_of(stage, rank) == 0) {
        std::vector<float>& learned = job.learned[{item.tensor, item.slot}];
        learned.resize(static_cast<std::size_t>(item.elements), std::nanf(""));
        unpack(item, has.begin, has.size(), values.data(), learned.data() + has.begin);
      }
      if (own || item.size() < item.elements) continue;
      const auto [at, added] = job.of_stage.emplace(std::pair(item.tensor, item.slot), values);
      EXPECT_EQ(at->second, values) << "rank " << rank << ": " << item.tensor << " " << item.slot;
    }
    return {};
  }

  // Trains by `before` and goes on by the job's plan, as a job does that moves to another plan.
  Status move_rank(const Graph& graph, const Plan& before, Job& job, int rank,
                   Transport& transport) {
    RenumberedGroups old_groups(transport, 0), new_groups(transport, group_count(before));
    ReplayOptions replay;
    replay.limit = kLimit;
    const auto from = executor_of(graph), to = executor_of(graph);
    AGPCS_TRY(const auto old, Replayer::create(before, rank, old_groups, *from, replay));
    for (int i = 0; i < 3; ++i) AGPCS_RETURN_IF_ERROR(old->run_step().status());
    replay.first_step = 3;
    AGPCS_TRY(const auto next, Replayer::create(job.plan, rank, new_groups, *to, replay));
    AGPCS_TRY(const StateOwners had, share_state_owners(from->state(), new_groups, kLimit));
    AGPCS_TRY(const StateOwners needed, share_state_owners(to->state(), new_groups, kLimit));
    AGPCS_TRY(const std::vector<StateMove> moves, plan_state_moves(had, needed));
    // The plans alone tell what a move carries.
    AGPCS_TRY(const std::vector<StateMove> foreseen,
              plan_state_moves(state_under(before), state_under(job.plan)));
    EXPECT_EQ(bytes_of(foreseen), bytes_of(moves));
    AGPCS_RETURN_IF_ERROR(move_state(moves, *from, *to, new_groups, kLimit));
    for (int i = 0; i < 3; ++i) AGPCS_RETURN_IF_ERROR(next->run_step().status());
    return note_learned(graph, job, rank, *to);
  }

  static std::unique_ptr<TorchExecutor> executor_of(const Graph& graph) {
    TorchOptions options;
    options.seed = 11;
    options.threads = 1;
    options.read_ahead = true;  // from whichever step a job goes on with
    return make_torch_executor(graph, std::move(options));
  }

  // A thread a rank.
  void try_run(const Graph& graph, const std::string& model, Job& job) {
    run_threads(job, [&](int rank, Transport& transport) {
      return run_rank(graph, model, job, rank, transport);
    });
  }

  static void run_threads(Job& job, const std::function<Status(int, Transport&)>& run) {
    const int ranks = job.plan.rank_count();
    LoopbackHub hub(ranks);
    job.said.resize(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto transport = hub.join(rank);
        Status& said = job.said[static_cast<std::size_t>(rank)];
        said = run(rank, *transport);
        if (!said.ok()) transport->abort(said);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void run(const Graph& graph, const std::string& model, Job& job) {
    try_run(graph, model, job);
    for (const Status& said : job.said) ASSERT_TRUE(said.ok()) << said.message();
  }

  Loss loss_;  // that of the last `graph_of`
  const TempFolder temp_;
  fs::path folder_ = temp_.path();
  std::mutex mutex_;
};

void expect_same(const Learned& got, const Learned& want, bool exact) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [key, values] : want) {
    const std::vector<float>& other = got.at(key);
    const std::string what = key.first + " " + key.second;
    // The softmax of attention does not feel this bias: its gradient is rounding and nothing else.
    if (!exact && key.first.find("attention.key.bias") != std::string::npos) continue;
    ASSERT_EQ(other.size(), values.size()) << what;
    const std::size_t bytes = values.size() * sizeof(float);
    if (exact) {
      EXPECT_EQ(std::memcmp(other.data(), values.data(), bytes), 0) << what;
    }
    double largest = 1e-6, distance = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_FALSE(std::isnan(other[i])) << what << " " << i;  // no rank had it
      largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
      distance = std::max(
          distance, std::fabs(static_cast<double>(values[i]) - static_cast<double>(other[i])));
    }
    EXPECT_LE(distance, 1e-5 * largest) << what;
  }
}

class ResumeUnder : public Resume, public ::testing::WithParamInterface<Case> {};

TEST_P(ResumeUnder, SixStepsAreThreeAndThree) {
  const Case& c = GetParam();
  const Graph graph = graph_of(c.model);
  const std::string checkpoints = folder_ / "checkpoints";
  Job whole{plan_of(graph, c.optimizer, c.before, c.micro_batches_before, kBatch, c.weights_before,
                    c.level, c.parts_before),
            0,
            6,
            "",
            "",
            {},
            {},
            {},
            {}};
  Job first{whole.plan, 0, 3, "", checkpoints, {}, {}, {}, {}};
  Job second{plan_of(graph, c.optimizer, c.after, c.micro_batches_after, kBatch, c.weights_after,
                     c.level, c.parts_after),
             3,
             3,
             checkpoints,
             "",
             {},
             {},
             {},
             {}};
  run(graph, c.model, whole);
  run(graph, c.model, first);
  run(graph, c.model, second);
  const bool exact = c.before == c.after && c.micro_batches_before == c.micro_batches_after &&
                     c.weights_before == c.weights_after && c.parts_before == c.parts_after;
  for (std::size_t i = 0; i < 3; ++i) {
    const double want = whole.losses[3 + i];
    EXPECT_NEAR(second.losses[i], want, exact ? 0 : 1e-5 * std::fabs(want)) << "step " << 3 + i;
  }
  expect_same(second.learned, whole.learned, exact);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* optimizer : {"sgd", "momentum", "adam"}) {
    for (const char* model : {"conv", "bert", "bn", "tied"}) {
      const auto add = [&](const char* how, Shares before, Shares after, std::int64_t mb_before,
                           std::int64_t mb_after) {
        all.push_back({fmt::format("{}_{}_{}", model, optimizer, how), model, optimizer,
                       std::move(before), std::move(after), mb_before, mb_after});
      };
      add("same_plan", {{3, 1}, {2, 2}}, {{3, 1}, {2, 2}}, 2, 2);
      // Batch norm's statistics are those of what one rank computes at once: under another plan it
      // trains otherwise, with or without a checkpoint.
      if (std::string(model) == "bn") {
        add("two_stages_to_one", {{4}, {4}}, {{4}}, 2, 2);
        continue;
      }
      // Two stages hold the table of words; the checkpoint has it once.
      if (std::string(model) == "tied") {
        add("two_stages_to_one", {{4}, {4}}, {{4}}, 2, 2);
        add("one_stage_to_two", {{3, 1}}, {{4}, {1, 3}}, 2, 2);
        add("three_ranks_to_four", {{3, 1}, {4}}, {{2, 2}, {1, 3}}, 2, 2);
        continue;
      }
      add("one_rank_to_three", {{4}}, {{3, 1}, {4}}, 2, 2);
      add("three_ranks_to_two", {{3, 1}, {4}}, {{2}, {2}}, 2, 4);
      add("two_ranks_to_five", {{4}, {4}}, {{1, 1, 1, 1}, {4}}, 2, 2);
    }
    if (std::string(optimizer) == "sgd") continue;  // it remembers nothing
    const auto divided = [&](const char* how, Shares before, std::vector<std::int64_t> weights,
                             Shares after, std::vector<std::int64_t> weights_after,
                             StateLevel level = StateLevel::kOptimizer) {
      all.push_back({fmt::format("tied_{}_{}", optimizer, how), "tied", optimizer,
                     std::move(before), std::move(after), 2, 2, std::move(weights),
                     std::move(weights_after), level});
    };
    const auto teams = [&](const char* model, const char* how, Shares before, Shares parts,
                           Shares after, Shares parts_after) {
      all.push_back({fmt::format("{}_{}_{}", model, optimizer, how), model, optimizer,
                     std::move(before), std::move(after)});
      all.back().parts_before = std::move(parts);
      all.back().parts_after = std::move(parts_after);
    };
    teams("bn", "team_same_plan", {{4}}, {{2, 3}}, {{4}}, {{2, 3}});
    teams("conv", "teams_same_plan", {{3, 1}}, {{5, 3}}, {{3, 1}}, {{5, 3}});
    teams("conv", "teams_to_whole", {{3, 1}, {4}}, {{1, 1}, {3, 1, 2}}, {{4}}, {});
    teams("bert", "teams_to_whole", {{4}, {4}}, {{5, 3}, {}}, {{1, 3}, {4}}, {});
    teams("bert", "whole_to_teams", {{4}, {4}}, {}, {{3, 1}}, {{2, 1, 1}});
    teams("bert", "teams_to_others", {{4}, {3, 1}}, {{1, 1}, {1, 3}}, {{4}, {4}},
          {{2, 1, 1}, {1, 1}});
    teams("tied", "team_to_whole", {{4}}, {{1, 1}}, {{4}, {4}}, {});
    divided("divided_same_plan", {{2, 1, 1}}, {5, 3, 4}, {{2, 1, 1}}, {5, 3, 4});
    divided("divided_to_whole", {{2, 1, 1}}, {5, 3, 4}, {{3, 1}, {4}}, {});
    divided("whole_to_divided", {{4}, {4}}, {}, {{3, 1}, {2, 2}}, {0, 5, 3});
    divided("divided_to_divided", {{3, 1}, {2, 2}}, {1, 4, 2}, {{2, 1, 1}}, {0, 1, 0});
    const StateLevel all_parts = StateLevel::kParameters;
    divided("parameters_same_plan", {{2, 1, 1}}, {5, 3, 4}, {{2, 1, 1}}, {5, 3, 4}, all_parts);
    divided("parameters_to_whole", {{2, 1, 1}}, {5, 3, 4}, {{3, 1}, {4}}, {}, all_parts);
    divided("whole_to_parameters", {{4}, {4}}, {}, {{3, 1}, {2, 2}}, {0, 5, 3}, all_parts);
    divided("parameters_to_others", {{3, 1}, {2, 2}}, {1, 4, 2}, {{2, 1, 1}}, {0, 1, 0}, all_parts);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Plans, ResumeUnder, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

// The two plans have as many ranks: a job keeps its own.
TEST_F(Resume, AJobMovesFromTeamsToOthersAndBack) {
  const Graph graph = graph_of("bert");
  const auto plan = [&](const Shares& shares, const Shares& parts) {
    return plan_of(graph, "adam", shares, 2, kBatch, {}, StateLevel::kOptimizer, parts);
  };
  const std::vector<Plan> plans = {
      plan({{4}, {2, 2}}, {{5, 3, 4}, {}}), plan({{4}, {4}}, {{1, 1}, {2, 1, 1}}),
      plan({{1, 1, 1, 1}, {4}}, {}), plan({{4}, {4}}, {{1, 1, 1}, {3, 1}}),
      plan({{4}, {2, 2}}, {{5, 3, 4}, {}})};
  Job whole{plan_of(graph, "adam", {{4}}, 2), 0, 6, "", "", {}, {}, {}, {}};
  run(graph, "bert", whole);
  for (std::size_t i = 0; i + 1 < plans.size(); ++i) {
    SCOPED_TRACE(i);
    Job job{plans[i + 1], 3, 3, "", "", {}, {}, {}, {}};
    run_threads(job, [&](int rank, Transport& transport) {
      return move_rank(graph, plans[i], job, rank, transport);
    });
    for (const Status& said : job.said) ASSERT_TRUE(said.ok()) << said.message();
    expect_same(job.learned, whole.learned, false);
  }
}

TEST_F(Resume, TheSavedModelIsTheTrainedOneAndIsImportedAgain) {
  for (const char* model : {"conv", "bert", "bn", "tied"}) {
    const Graph graph = graph_of(model);
    const std::string checkpoints = folder_ / (std::string("of-") + model);
    Job job{plan_of(graph, "momentum", {{3, 1}, {4}}, 2), 0, 2, "", checkpoints, {}, {}, {}, {}};
    run(graph, model, job);
    const auto found = find_checkpoint(checkpoints);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->checkpoint.step, 2);
    Loss loss;
    loss.by_shape = std::string(model) == "tied";
    const Graph saved = testing::training_graph(found->folder + "/" + kModelFile, loss);
    EXPECT_EQ(print_graph(saved), print_graph(graph)) << model;
    for (const auto& [key, values] : job.learned) {
      if (key.second != "value") continue;
      const auto& bytes = saved.tensor(saved.find_tensor(key.first)).constant.bytes;
      ASSERT_EQ(bytes.size(), values.size() * sizeof(float)) << key.first;
      EXPECT_EQ(std::memcmp(bytes.data(), values.data(), bytes.size()), 0) << key.first;
    }
  }
}

TEST_F(Resume, ADamagedFileEndsItOnAllRanksWithItsName) {
  const Graph graph = graph_of("conv");
  const std::string checkpoints = folder_ / "checkpoints";
  Job job{plan_of(graph, "sgd", {{2, 2}}, 2), 0, 1, "", checkpoints, {}, {}, {}, {}};
  run(graph, "conv", job);
  const std::string file = checkpoints + "/step-00000001/" + kModelDataFile;
  {
    std::fstream data(file, std::ios::in | std::ios::out | std::ios::binary);
    data.seekp(100);
    data.put('?');
  }
  Job again{job.plan, 1, 1, checkpoints, "", {}, {}, {}, {}};
  try_run(graph, "conv", again);
  EXPECT_THAT(again.said[0].message(), HasSubstr(file + ": error: its digest is sha256:"));
  EXPECT_FALSE(again.said[1].ok());
}

TEST_F(Resume, AnotherOptimizerModelBatchOrSeedIsRefused) {
  const Graph graph = graph_of("conv");
  const std::string checkpoints = folder_ / "checkpoints";
  Job job{plan_of(graph, "momentum", {{2, 2}}, 2), 0, 1, "", checkpoints, {}, {}, {}, {}};
  run(graph, "conv", job);
  const auto refusal = [&](const Plan& plan) {
    Job other{plan, 1, 1, checkpoints, "", {}, {}, {}, {}};
    try_run(graph, "conv", other);
    return other.said[0].message();
  };
  EXPECT_THAT(refusal(plan_of(graph, "adam", {{4}}, 2)),
              HasSubstr("the checkpoint has no 'first' of '"));
  EXPECT_THAT(refusal(plan_of(graph, "sgd", {{4}}, 2)),
              HasSubstr("the checkpoint has 'momentum' of '"));
  EXPECT_THAT(refusal(plan_of(graph, "momentum", {{4}}, 4, 16)),
              HasSubstr("a training with batch 8, the plan has batch 16\n"
                        "  hint: step 1 begins at sample 8; compile the plan with --batch 8"));
  const auto found = find_checkpoint(checkpoints);
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(check_resumable(*found, job.plan, 1, 11).ok());
  EXPECT_THAT(check_resumable(*found, job.plan, 1, 12).message(),
              HasSubstr("--seed is 12, the checkpoint " + found->folder + " has 11"));
  Plan other = job.plan;
  other.model_digest = digest_of("other");
  EXPECT_THAT(check_resumable(*found, other, 1, {}).message(),
              HasSubstr("the checkpoint is of the model " + job.plan.model_digest +
                        ", the plan for " + other.model_digest));
}

}  // namespace
}  // namespace agpcs
