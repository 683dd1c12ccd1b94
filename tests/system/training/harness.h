// SPDX-License-Identifier: Apache-2.0
// Trains by a plan with every rank in this process, over loopback.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/strategy/strategy.h"
#include "runtime/torch/executor.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace agpcs::testing {

/// A model with batch normalization, as ONNX text.
inline constexpr const char* kBatchNorm = R"(
<ir_version: 8, opset_import: ["": 17]>
bn (float[batch, 3, 6, 6] image) => (float[batch, 4] logits)
{
  conv_shape = Constant <value = int64[4] {5, 3, 3, 3}> ()
  conv_weight = ConstantOfShape (conv_shape)
  conv = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, conv_weight)
  channels = Constant <value = int64[1] {5}> ()
  scale = ConstantOfShape <value = float[1] {1}> (channels)
  bias = ConstantOfShape (channels)
  mean = ConstantOfShape (channels)
  variance = ConstantOfShape <value = float[1] {1}> (channels)
  norm = BatchNormalization (conv, scale, bias, mean, variance)
  relu = Relu (norm)
  pool = GlobalAveragePool (relu)
  features = Flatten (pool)
  fc_shape = Constant <value = int64[2] {4, 5}> ()
  fc_weight = ConstantOfShape (fc_shape)
  fc_bias_shape = Constant <value = int64[1] {4}> ()
  fc_bias = ConstantOfShape (fc_bias_shape)
  logits = Gemm <transB = 1> (features, fc_weight, fc_bias)
}
)";

/// What a training run left behind.
struct Trained {
  std::vector<double> losses;                        ///< by step
  std::map<std::string, std::vector<float>> values;  ///< parameters, of all stages
  Evaluation evaluation = {};                        ///< at the end, if the options have samples
};

/// The model at `path` with its weights, as a training graph (softmax cross entropy).
Graph training_graph(const std::string& path);
/// The same with another loss, which then says what it was attached to.
Graph training_graph(const std::string& path, Loss& loss,
                     const std::vector<std::string>& freeze = {});
/// Sets every Dropout's ratio.
void set_dropout(Graph& graph, double ratio);

/// A plan of `shares.size()` stages cut into runs of about equal operator counts, each of the given
/// replicas' shares, with two buckets a stage, and one for each parameter that stages share.
/// `in_flight`: micro-batches by stage; empty: the textbook's.
Plan plan_with(const Graph& graph, const Training& training,
               const std::vector<std::vector<std::int64_t>>& shares, std::int64_t micro_batches,
               const Recomputation& recompute = {}, const std::vector<std::int64_t>& in_flight = {},
               Schedule schedule = Schedule::k1F1B);

/// The same with an interleaved schedule: `each` stages on each set of devices, of which `round`
/// has the shares.
Plan interleaved_plan(const Graph& graph, const Training& training,
                      const std::vector<std::vector<std::int64_t>>& round, std::size_t each,
                      std::int64_t micro_batches, const Recomputation& recompute = {});

/// A stage of `plan_with_teams`: the shares of its replicas, and the parts of operators that the
/// members of each have (empty: replicas are single ranks).
struct TeamsShape {
  std::vector<std::int64_t> shares, parts = {};
  bool backwards = false;  ///< the first member of each team has its last rank
  /// By replica, in place of `parts`: those of its members; {1}: it computes alone.
  std::vector<std::vector<std::int64_t>> unlike = {};
};

/// The same of stages that may have teams, with the body that is best for members that are as fast
/// as their parts are large, on links of `link` bytes per second.
Plan plan_with_teams(const Graph& graph, const Training& training,
                     const std::vector<TeamsShape>& stages, std::int64_t micro_batches,
                     double link = 1e9);

/// Divides buckets as `sharded` does. Where ranks divide parameters, passes gather them as they
/// come to the operators of `graph`.
Plan divided(const Graph& graph, Plan plan, const std::vector<std::int64_t>& weights,
             StateLevel level);

/// SGD with momentum and weight decay, `batch` samples a step.
Training training_of(std::int64_t batch);

using MakeOptions = std::function<TorchOptions()>;

/// What replicas must agree on to the last bit. Running statistics are each replica's own.
enum class Check { kEverything, kParameters };

/// Runs `steps` steps of `plan`, each of `TorchOptions::batches` batches, a thread a rank. Ends the
/// test program when a rank fails, and checks that replicas agree on loss and parameters to the
/// last bit.
Trained train(const Graph& graph, const Plan& plan, int steps, const MakeOptions& options,
              Check check = Check::kEverything);

/// Returns all elements of a .npy file.
std::vector<float> read_floats(const std::string& path);
std::vector<double> read_doubles(const std::string& path);

/// Losses and parameters agree to a relative `tolerance` (of the largest element of a parameter).
void expect_equal_training(const Trained& got, const Trained& want, double tolerance);

}  // namespace agpcs::testing
