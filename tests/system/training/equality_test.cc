// SPDX-License-Identifier: Apache-2.0
// Training by plan equals training alone: losses over 20 steps and final parameters agree with one
// process that computes the same micro-batches, and with a plain PyTorch loop from the same
// weights.
#include "runtime/torch/data/data.h"
#include "runtime/torch/data/npy.h"
#include "tests/support/shard_plan.h"
#include "tests/support/temp_folder.h"
#include "tests/system/executor/optimization.h"
#include "tests/system/training/harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::MakeOptions;
using testing::Trained;

constexpr int kSteps = 20;
constexpr std::int64_t kBatch = 8;
constexpr double kTolerance = 1e-4;

using Shares = std::vector<std::vector<std::int64_t>>;

// A model and how it is split.
struct Case {
  std::string name;
  std::string model;
  Shares shares;
  std::int64_t micro_batches;
  Recomputation recompute = {};
  std::int64_t batch = kBatch;
  std::vector<std::int64_t> in_flight = {};  // by stage; empty: the textbook's
  Schedule schedule = Schedule::k1F1B;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model : {"conv", "bert"}) {
    const auto add = [&](const char* how, Shares shares, std::int64_t micro_batches,
                         const Recomputation& recompute = {}) {
      all.push_back(
          {fmt::format("{}_{}", model, how), model, std::move(shares), micro_batches, recompute});
    };
    add("data_parallel_3_to_1", {{3, 1}}, 2);
    add("two_stages", {{2}, {2}}, 4);
    add("four_stages", {{2}, {2}, {2}, {2}}, 4);
    add("two_stages_of_two_replicas", {{2, 2}, {3, 1}}, 2);
    add("two_stages_recomputed", {{2}, {2}}, 4, kWholeStage);
    add("two_stages_recomputed_in_segments", {{2}, {2}}, 4, Recomputation{4, 0});
    add("two_stages_of_two_replicas_recomputed_in_part", {{2, 2}, {3, 1}}, 2, Recomputation{8, 3});
    add("two_stages_of_two_replicas_for_a_prime_batch", {{2, 2}, {3, 1}}, 2);
    all.back().batch = 7;  // micro-batches of 4 and 3
    add("two_stages_with_three_in_flight", {{2}, {2}}, 4);
    all.back().in_flight = {3, 1};
    add("three_stages_with_five_in_flight", {{1}, {1}, {1}}, 8, kWholeStage);
    all.back().in_flight = {5, 3, 1};
    add("three_stages_with_two_in_flight", {{1, 1}, {2}, {2}}, 4);
    all.back().in_flight = {2, 1, 1};
    const auto add_parted = [&](const char* how, Shares shares, std::int64_t micro_batches) {
      add(how, std::move(shares), micro_batches);
      all.back().schedule = Schedule::kZeroBubble;
    };
    add_parted("two_stages_parted", {{2}, {2}}, 4);
    add_parted("four_stages_parted", {{1}, {1}, {1}, {1}}, 8);
    add_parted("three_stages_parted_with_five_in_flight", {{1}, {1}, {1}}, 8);
    all.back().in_flight = {5, 3, 1};
    add_parted("two_stages_of_two_replicas_parted", {{2, 2}, {3, 1}}, 2);
    add_parted("three_stages_parted_for_a_prime_batch", {{2}, {2}, {2}}, 4);
    all.back().batch = 7;  // micro-batches of 2 and 1
  }
  return all;
}

MakeOptions seeded() {
  return [] {
    TorchOptions options;
    options.seed = 11;
    return options;
  };
}

class TrainingByPlan : public ::testing::TestWithParam<Case> {};

TEST_P(TrainingByPlan, EqualsTrainingAlone) {
  const Case& c = GetParam();
  const Graph graph = testing::training_graph("tests/system/training/models/" + c.model + ".onnx");
  const Training training = testing::training_of(c.batch);
  const std::int64_t larger = (c.batch + c.micro_batches - 1) / c.micro_batches;
  const Plan alone = testing::plan_with(graph, training, {{larger}}, c.micro_batches);
  const Plan split = testing::plan_with(graph, training, c.shares, c.micro_batches, c.recompute,
                                        c.in_flight, c.schedule);
  ASSERT_EQ(split.stages.size(), c.shares.size());
  const Trained want = testing::train(graph, alone, kSteps, seeded());
  const Trained got = testing::train(graph, split, kSteps, seeded());
  testing::expect_equal_training(got, want, kTolerance);
  EXPECT_NE(want.losses.front(), want.losses.back());
}

INSTANTIATE_TEST_SUITE_P(Plans, TrainingByPlan, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

TEST(TrainingByPlan, EqualsTrainingAloneWithAdam) {
  const Graph graph = testing::training_graph("tests/system/training/models/conv.onnx");
  Training training = testing::training_of(kBatch);
  training.optimizer = {};
  training.optimizer.kind = OptimizerKind::kAdam;
  training.optimizer.learning_rate = 0.003;
  const Trained want =
      testing::train(graph, testing::plan_with(graph, training, {{4}}, 2), kSteps, seeded());
  const Trained got = testing::train(graph, testing::plan_with(graph, training, {{3, 1}, {4}}, 2),
                                     kSteps, seeded());
  // Adam divides by the gradient's size: differences of rounding weigh more where it is small.
  testing::expect_equal_training(got, want, 1e-3);
}

// Micro-batches of 3, 2 and 2 samples, two batches a step, and ranks of unequal shares.
TEST(TrainingByPlan, SamplesThatAreReadAheadAreTheSame) {
  const Graph graph = testing::training_graph("tests/system/training/models/conv.onnx");
  const auto reading = [](bool ahead, int batches) {
    return [ahead, batches] {
      TorchOptions options;
      options.seed = 11;
      options.read_ahead = ahead;
      options.batches = batches;
      return options;
    };
  };
  for (const Shares& shares : {Shares{{3}}, Shares{{2, 1}}, Shares{{3}, {1, 2}}}) {
    const Plan plan = testing::plan_with(graph, testing::training_of(7), shares, 3);
    for (const int batches : {1, 2}) {
      testing::expect_equal_training(testing::train(graph, plan, 5, reading(true, batches)),
                                     testing::train(graph, plan, 5, reading(false, batches)), 0);
    }
  }
}

struct Division {
  const char* name;
  Shares shares;
  std::vector<std::int64_t> weights;
  std::int64_t micro_batches = 2;
  Recomputation recompute = {};
};

// The softmax of attention does not feel this bias: its gradient is rounding and nothing else,
// which Adam makes large.
void without_noise(Trained& trained) {
  for (const char* layer : {"layer.0", "layer.1"}) {
    const std::size_t erased = trained.values.erase(std::string(layer) + ".attention.key.bias");
    ASSERT_EQ(erased, 1U) << layer;
  }
}

// An update of a part is an update of its elements: only the order of sums differs.
TEST(TrainingByPlan, EqualsTrainingAloneWhereRanksDivideTheState) {
  const Graph graph = testing::training_graph("tests/system/training/models/bert.onnx");
  for (const Optimization& optimization : kOptimizations) {
    if (std::string(optimization.name) == "sgd") continue;  // it remembers nothing
    Training training = testing::training_of(kBatch);
    training.optimizer = optimization.optimizer;
    const Plan alone = testing::plan_with(graph, training, {{4}}, 2);
    Trained want = testing::train(graph, alone, kSteps, seeded());
    without_noise(want);
    for (const Division& division :
         {Division{"uneven", {{2, 1, 1}}, {5, 3, 4}}, Division{"one owner", {{2, 2}}, {0, 1}},
          Division{"pipeline", {{3, 1}, {2, 2}}, {1, 4, 0}},
          Division{"segments", {{3, 1}}, {2, 3}, 2, {6, 2}},
          Division{"pipeline in segments", {{1, 1}, {1, 1}}, {1, 3}, 4, {4, 1}}}) {
      const Plan whole = testing::plan_with(graph, training, division.shares,
                                            division.micro_batches, division.recompute);
      for (const StateLevel level : kDividingLevels) {
        const Plan divided = testing::divided(graph, whole, division.weights, level);
        Trained got = testing::train(graph, divided, kSteps, seeded());
        without_noise(got);
        SCOPED_TRACE(fmt::format("{}, {}, {}", optimization.name, division.name, name_of(level)));
        testing::expect_equal_training(got, want, kTolerance);
      }
    }
  }
}

TEST(TrainingByPlan, EqualsTrainingAloneWithStateInTheMemoryOfHosts) {
  const Graph graph = testing::training_graph("tests/system/training/models/bert.onnx");
  for (const Optimization& optimization : kOptimizations) {
    if (std::string(optimization.name) == "sgd") continue;  // it remembers nothing
    Training training = testing::training_of(kBatch);
    training.optimizer = optimization.optimizer;
    training.optimizer.max_norm = 0.5;
    const Plan alone = testing::plan_with(graph, training, {{4}}, 2);
    Trained want = testing::train(graph, alone, kSteps, seeded());
    without_noise(want);
    for (const Shares& shares : {Shares{{4}}, Shares{{3, 1}}, Shares{{2, 2}, {3, 1}}}) {
      const Plan whole = testing::plan_with(graph, training, shares, 2);
      for (const StateLevel level : {StateLevel::kWhole, StateLevel::kParameters}) {
        if (shares[0].size() == 1 && level != StateLevel::kWhole) continue;
        Plan plan =
            level == StateLevel::kWhole ? whole : testing::divided(graph, whole, {2, 3}, level);
        for (PlanStage& stage : plan.stages) stage.state_in_host = true;
        Trained got = testing::train(graph, plan, kSteps, seeded());
        without_noise(got);
        SCOPED_TRACE(
            fmt::format("{}, {} stages, {}", optimization.name, shares.size(), name_of(level)));
        testing::expect_equal_training(got, want, kTolerance);
      }
    }
  }
}

TEST(TrainingByPlan, EqualsTrainingAloneWithActivationsInTheMemoryOfHosts) {
  for (const char* const model : {"bert", "conv"}) {
    const Graph graph =
        testing::training_graph(std::string("tests/system/training/models/") + model + ".onnx");
    Training training = testing::training_of(kBatch);
    training.optimizer = kOptimizations[1].optimizer;
    training.optimizer.max_norm = 0.5;
    Trained want =
        testing::train(graph, testing::plan_with(graph, training, {{4}}, 2), kSteps, seeded());
    if (std::string(model) == "bert") without_noise(want);
    for (const Shares& shares : {Shares{{4}}, Shares{{3, 1}}, Shares{{2, 2}, {3, 1}}}) {
      for (const auto& [segments, again] :
           {std::pair(kWholeStage, false), {{6, 2}, false}, {{6, 2}, true}}) {
        Plan plan = testing::plan_with(graph, training, shares, 2, segments);
        for (PlanStage& stage : plan.stages) {
          stage.recompute = again;
          stage.activations_in_host = true;
        }
        if (shares[0].size() > 1) {
          plan = testing::divided(graph, plan, {2, 3}, StateLevel::kGradients);
          for (PlanStage& stage : plan.stages) stage.state_in_host = true;
        }
        Trained got = testing::train(graph, plan, kSteps, seeded());
        if (std::string(model) == "bert") without_noise(got);
        SCOPED_TRACE(fmt::format("{}, {} stages of {}, {} segments{}", model, shares.size(),
                                 shares[0].size(), segments.segments, again ? " again" : ""));
        testing::expect_equal_training(got, want, kTolerance);
      }
    }
  }
}

TEST(TrainingByPlan, EqualsTrainingAloneWithPartedBackwardPassesAndDividedState) {
  const Graph graph = testing::training_graph("tests/system/training/models/bert.onnx");
  for (const Optimization& optimization : kOptimizations) {
    for (const double max_norm : {0.0, 0.5}) {
      Training training = testing::training_of(kBatch);
      training.optimizer = optimization.optimizer;
      training.optimizer.max_norm = max_norm;
      Trained want =
          testing::train(graph, testing::plan_with(graph, training, {{4}}, 2), kSteps, seeded());
      const Plan parted = testing::plan_with(graph, training, {{3, 1}, {4}, {1, 3}}, 2, {}, {},
                                             Schedule::kZeroBubble);
      Trained got = testing::train(graph, testing::sharded(parted, {1, 3}), kSteps, seeded());
      without_noise(want);
      without_noise(got);
      SCOPED_TRACE(fmt::format("{}, clipped to {}", optimization.name, max_norm));
      testing::expect_equal_training(got, want, kTolerance);
    }
  }
}

// What travels in fp16 or bf16 is off by a relative 2^-11 or 2^-8 for each rounding, of which there
// are as many as ranks: losses stay as near as that, since these models do not train chaotically.
TEST(TrainingByPlan, IsNearFp32WhereGradientsTravelInAnotherType) {
  for (const char* model : {"conv", "bert"}) {
    const Graph graph =
        testing::training_graph(std::string("tests/system/training/models/") + model + ".onnx");
    for (const Shares& shares : {Shares{{3, 1}}, Shares{{1, 1, 1, 1}}, Shares{{2, 2}, {3, 1}}}) {
      Training training = testing::training_of(kBatch);
      const auto trained = [&] {
        Plan plan = testing::plan_with(graph, training, shares, 2);
        if (shares.size() == 2) plan = testing::sharded(std::move(plan), {1, 3});
        if (shares[0].size() == 4) {
          plan = testing::sharded(std::move(plan), {1, 2}, StateLevel::kGradients);
        }
        return testing::train(graph, plan, kSteps, seeded(), testing::Check::kParameters);
      };
      const Trained want = trained();
      for (const auto& [wire, tolerance] :
           {std::pair(DType::kFp16, 1e-3), std::pair(DType::kBf16, 1e-2)}) {
        training.wire_type = wire;
        const Trained got = trained();
        EXPECT_EQ(got.losses[0], want.losses[0]);
        EXPECT_NE(got.losses.back(), want.losses.back());
        for (std::size_t step = 0; step < want.losses.size(); ++step) {
          EXPECT_NEAR(got.losses[step], want.losses[step], tolerance * want.losses[step])
              << model << ", " << shares.size() << " stages, " << name_of(wire) << ", step "
              << step;
        }
      }
    }
  }
}

class PlainPyTorch : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string python = AGPCS_TORCH_PYTHON;
    if (python.empty() || std::system((python + " -c 'import onnx' 2>/dev/null").c_str()) != 0) {
      GTEST_SKIP() << "Debian's python3-torch and python3-onnx are not installed";
    }
  }

  /// Trains by `plan` and in a plain loop that clips gradients to `max_norm` ("": it does not).
  void expect_equal(const Graph& graph, const Plan& plan, const std::string& max_norm = "") {
    const std::string command =
        fmt::format("{} tests/system/training/models.py train {} {} {} {}", AGPCS_TORCH_PYTHON,
                    GetParam(), model(), folder_.string(), max_norm);
    ASSERT_EQ(std::system(command.c_str()), 0);
    const auto options = [&] {
      std::vector<std::pair<std::string, std::string>> files;
      for (TensorId id : graph.inputs) {
        const std::string& name = graph.tensor(id).name;
        files.emplace_back(name, file("sample." + name));
      }
      TorchOptions o;
      o.data = open_data_files(graph, {.paths = files}).value();
      return o;
    };
    const Trained got = testing::train(graph, plan, kSteps, options);
    Trained want{testing::read_doubles(file("losses")), {}, {}};
    for (const auto& [name, value] : got.values) {
      want.values[name] = testing::read_floats(file("final." + name));
    }
    testing::expect_equal_training(got, want, kTolerance);
  }
  Graph graph() const {
    Graph graph = testing::training_graph(model());
    testing::set_dropout(graph, 0);
    return graph;
  }
  std::string model() const { return "tests/system/training/models/" + GetParam() + ".onnx"; }
  std::string file(const std::string& name) const { return folder_ / (name + ".npy"); }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
};

TEST_P(PlainPyTorch, EqualsTrainingByPlanFromTheSameWeights) {
  const Graph model = graph();
  expect_equal(model, testing::plan_with(model, testing::training_of(kBatch), {{1, 3}, {2, 2}}, 2));
}

TEST_P(PlainPyTorch, ClipsByTheNormOfAllGradientsWhateverThePlan) {
  const Graph model = graph();
  Training training = testing::training_of(kBatch);
  training.optimizer.max_norm = 0.5;
  expect_equal(model, testing::plan_with(model, training, {{4}, {4}}, 2), "0.5");
  const Plan whole = testing::plan_with(model, training, {{1, 3}, {2, 2}}, 2);
  expect_equal(model, whole, "0.5");
  for (const StateLevel level : kDividingLevels) {
    SCOPED_TRACE(name_of(level));
    expect_equal(model, testing::divided(model, whole, {1, 2}, level), "0.5");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlainPyTorch, ::testing::Values("conv", "bert"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace agpcs
