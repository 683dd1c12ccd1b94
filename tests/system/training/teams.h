// SPDX-License-Identifier: Apache-2.0
// Compares training by plans with teams with training alone.
#pragma once

#include "ir/plan/body/body.h"
#include "runtime/torch/data/data.h"
#include "tests/support/team_onnx.h"
#include "tests/support/temp_folder.h"
#include "tests/system/training/harness.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

using testing::TeamsShape;
using testing::Trained;
using Shapes = std::vector<TeamsShape>;

inline constexpr int kSteps = 20;
inline constexpr std::int64_t kMicroBatches = 2;
inline constexpr double kTolerance = 1e-4;

/// Heads, columns and the vocabulary can be divided as 5 : 3 : 4.
inline constexpr testing::TransformerSize kGpt{2, 6, 48, 12, 12, 96, 48, false};
inline constexpr testing::TransformerSize kLlama{2,  6,  96, 24,
                                                 12, 96, 48, false};  // of grouped queries
/// The first samples of a synthetic source; no multiple of a batch.
class HeldOut final : public DataSource {
 public:
  explicit HeldOut(const Graph& graph) : all_(make_synthetic_data(graph, 5)) {}
  Status fill(TensorId input, std::int64_t first, std::int64_t count, void* out) override {
    return all_->fill(input, first, count, out);
  }
  std::int64_t rows() const override { return kRows; }
  static constexpr std::int64_t kRows = 21;

 private:
  const std::unique_ptr<DataSource> all_;
};

/// 12 experts, which get one of the 3 tokens of a group each.
inline constexpr testing::TransformerSize kMoe{2, 6, 48, 12, 12, 96, 48, false, 12, 2, 1};

inline Loss loss_by_shape(std::optional<std::int64_t> ignored = {}, double smoothing = 0) {
  Loss loss;
  loss.by_shape = true;
  loss.ignore_index = ignored;
  loss.label_smoothing = smoothing;
  return loss;
}

class Teams : public ::testing::Test {
 protected:
  /// Reads a model: those of team_models.h, or a file of the training tests.
  void read(const std::string& name, const std::vector<std::string>& freeze = {},
            const Loss& loss = loss_by_shape()) {
    model_ = folder_ / (name + ".onnxtxt");
    const std::map<std::string, std::string> texts = {
        {"gpt", testing::TransformerText(kGpt).gpt()},
        {"llama", testing::TransformerText(kLlama).llama()},
        {"moe", testing::TransformerText(kMoe).moe()}};
    if (name == "bn") {
      std::ofstream(model_) << testing::kBatchNorm;
    } else if (const auto text = texts.find(name); text != texts.end()) {
      std::ofstream(model_) << testing::TransformerOnnx(text->second).text();
    } else {
      model_ = "tests/system/training/models/" + name + ".onnx";
    }
    loss_ = loss;
    graph_ = testing::training_graph(model_, loss_, freeze);
  }

  Training training(std::int64_t batch = 8) const {
    Training training = testing::training_of(batch);
    training.loss = loss_;
    return training;
  }

  Plan alone(const Training& training) const {
    const std::int64_t larger = (training.batch + kMicroBatches - 1) / kMicroBatches;
    return testing::plan_with(graph_, training, {{larger}}, kMicroBatches);
  }

  Trained train(const Plan& plan, int batches = 1, int steps = kSteps) const {
    return testing::train(graph_, plan, steps, [batches] {
      TorchOptions options;
      options.seed = 11;
      options.batches = batches;
      return options;
    });
  }

  void expect_equal(const Shapes& shapes, const Training& training, const Trained& want,
                    int batches = 1, double link = 1e9) const {
    SCOPED_TRACE(text_of(shapes));
    const Plan plan = testing::plan_with_teams(graph_, training, shapes, kMicroBatches, link);
    note_exchanges(plan);
    testing::expect_equal_training(train(plan, batches), want, kTolerance);
  }

  /// Trains a little, then evaluates.
  Evaluation evaluate(const Plan& plan) const {
    const testing::MakeOptions options = [this] {
      TorchOptions made;
      made.seed = 11;
      made.evaluation = std::make_unique<HeldOut>(graph_);
      return made;
    };
    return testing::train(graph_, plan, 2, options).evaluation;
  }

  void expect_equal_evaluation(const Shapes& shapes, const Evaluation& want,
                               double link = 1e9) const {
    SCOPED_TRACE(text_of(shapes));
    const Plan plan = testing::plan_with_teams(graph_, training(), shapes, kMicroBatches, link);
    note_exchanges(plan);
    const Evaluation got = evaluate(plan);
    EXPECT_NEAR(got.loss, want.loss, kTolerance * want.loss);
    EXPECT_EQ(got.correct, want.correct);
    EXPECT_EQ(got.counted, want.counted);
    EXPECT_EQ(got.samples, HeldOut::kRows);
  }

  void note_exchanges(const Plan& plan) const {
    for (const PlanBody& body : plan.bodies) {
      for (const BodyTensor& tensor : body.tensors) {
        divided_ += tensor.parameter && tensor.forms[0].lying == Lying::kPart ? 1 : 0;
        for (int form = 0; form < static_cast<int>(tensor.forms.size()); ++form) {
          exchanges_.insert(forward_exchange(tensor, form));
          exchanges_.insert(backward_exchange(tensor, form));
        }
      }
    }
  }

  static std::string text_of(const Shapes& shapes) {
    std::string text;
    for (const TeamsShape& stage : shapes) {
      text += fmt::format("[shares {}, parts {}{}", fmt::join(stage.shares, ":"),
                          fmt::join(stage.parts, ":"), stage.backwards ? " backwards" : "");
      for (const auto& parts : stage.unlike) text += fmt::format(" or {}", fmt::join(parts, ":"));
      text += "] ";
    }
    return text;
  }

  const TempFolder temp_;
  std::filesystem::path folder_ = temp_.path();
  // Of all plans so far: exchanges, and parameters that members divide.
  mutable std::set<TeamExchange> exchanges_;
  mutable int divided_ = 0;
  std::string model_;
  Graph graph_;
  Loss loss_;
};

}  // namespace agpcs
