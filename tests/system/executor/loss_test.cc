// SPDX-License-Identifier: Apache-2.0
// What the executor computes for losses, what it keeps for their backward passes, and how it counts
// labels.
#include "ir/graph/training_graph.h"
#include "tests/system/executor/kept_bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::StageDriver;

constexpr std::int64_t kBatch = 64;

Graph attached(const std::string& forward, Loss loss) {
  auto graph = attach_loss(testing::graph_of(forward), loss);
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  auto derived = derive_backward(*std::move(graph));
  AGPCS_CHECK(derived.ok(), "{}", derived.status().message());
  return *std::move(derived);
}

struct Case {
  std::string name;
  std::string output;  // a shape whose last axis is 30
  Loss loss;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  Loss smooth;
  smooth.label_smoothing = 0.1;
  Loss pixels;
  pixels.class_axis = 1;
  return {{"cross_entropy", "[n,30]", {}},
          {"of_positions", "[n,7,30]", {}},
          {"with_smoothing", "[n,7,30]", smooth},
          {"of_pixels", "[n,5,7,30]", pixels},
          {"mse", "[n,7,30]", {LossKind::kMse, {}}},
          {"bce_with_logits", "[n,7,30]", {LossKind::kBceWithLogits, {}}}};
}

class LossMemory : public ::testing::TestWithParam<Case> {};

TEST_P(LossMemory, IsWhatTheTableSays) {
  const Case& c = GetParam();
  std::string input = c.output;
  input.replace(input.rfind("30"), 2, "8");
  const Graph graph = attached(
      "input x " + input + "\nparameter w [8,30]\ny = MatMul(x, w) " + c.output + "\noutputs y\n",
      c.loss);
  const std::int64_t table = testing::kept_by_table(graph, kBatch);
  // Scalars, such as the loss itself, are not in the table.
  const std::int64_t kept = testing::kept_by_executor(graph, kBatch);
  EXPECT_LT(kept, table + 128);
  // LibTorch 2.15 keeps a tensor less of the losses of floating labels.
  const bool keeps_less = TORCH_VERSION_MAJOR >= 2 && c.loss.kind != LossKind::kSoftmaxCrossEntropy;
  const TensorId output = graph.find_tensor("y");
  const std::int64_t less = keeps_less ? elements_at(graph.tensor(output).shape, kBatch) * 4 : 0;
  EXPECT_GT(kept, table - less - 128);
  EXPECT_GT(table, kBatch * 30 * 4);
}

INSTANTIATE_TEST_SUITE_P(Losses, LossMemory, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

// Labels of two samples of three positions; features are 1.
class Labels : public DataSource {
 public:
  Labels(const Graph& graph, std::vector<std::int64_t> labels)
      : graph_(graph), labels_(std::move(labels)) {}
  Status fill(TensorId input, std::int64_t first, std::int64_t count, void* out) override {
    const Tensor& tensor = graph_.tensor(input);
    const std::int64_t per_sample = elements_at(tensor.shape, 1);
    for (std::int64_t i = 0; i < count * per_sample; ++i) {
      if (is_floating(tensor.type)) {
        static_cast<float*>(out)[i] = 1;
      } else {
        const std::int64_t at = first * per_sample + i;
        static_cast<std::int64_t*>(out)[i] = labels_[static_cast<std::size_t>(at) % labels_.size()];
      }
    }
    return {};
  }

 private:
  const Graph& graph_;
  std::vector<std::int64_t> labels_;
};

constexpr const char* kPositions =
    "input x [n,3,2]\nparameter w [2,4]\ny = MatMul(x, w) [n,3,4]\noutputs y\n";

TEST(CountedLabels, ABatchWithoutOneIsAnError) {
  const Graph graph = attached(kPositions, {});
  TorchOptions options;
  options.data = std::make_unique<Labels>(graph, std::vector<std::int64_t>(6, -100));
  const std::unique_ptr<TorchExecutor> executor = make_torch_executor(graph, std::move(options));
  ASSERT_TRUE(executor->prepare(testing::plan_of_one_pass(graph, 2), 0).ok());
  ASSERT_TRUE(executor->begin_step(0).ok());
  EXPECT_EQ(executor->forward({0, 0}).message(),
            "node 'loss/y/softmax_cross_entropy' (SoftmaxCrossEntropyLoss): the batch has no label "
            "that counts, all are -100\n  hint: the loss is a mean over the other labels");
}

TEST(CountedLabels, ALossDoesNotDependOnLabelsThatDoNotCount) {
  const Graph graph = attached(kPositions, {});
  const auto loss = [&](std::vector<std::int64_t> labels) {
    TorchOptions options;
    options.seed = 3;
    options.data = std::make_unique<Labels>(graph, std::move(labels));
    return StageDriver(graph, testing::plan_of_one_pass(graph, 2), std::move(options)).step();
  };
  // All features are alike, so each position's loss depends on its label alone.
  EXPECT_NEAR(loss({1, -100, -100, -100, -100, -100}), loss({1, 1, 1, 1, 1, 1}), 1e-6);
  EXPECT_NEAR(loss({1, -100, 2, -100, -100, -100}), loss({1, 2, 1, 2, 1, 2}), 1e-6);
}

}  // namespace
}  // namespace agpcs
