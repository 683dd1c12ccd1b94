// SPDX-License-Identifier: Apache-2.0
// StageParameters: a stage's weights, their gradients in flat buckets, and the optimizer's state.
#pragma once

#include "ir/graph.h"
#include "runtime/torch_ops.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace agpcs {

class StageParameters {
 public:
  StageParameters() = default;
  StageParameters(const StageParameters&) = delete;
  StageParameters& operator=(const StageParameters&) = delete;

  /// Allocates and initializes (from the file's values or from `seed` and the name) every parameter
  /// and state tensor in `tensors`. Parameters of bucket b lie in one flat buffer in member order,
  /// their gradients in another of the same layout; autograd adds into the latter directly.
  /// Errors: a bucket member that is not among `tensors`, or with another element count.
  Status allocate(const Graph& graph, const Plan& plan, int stage,
                  const std::vector<TensorId>& tensors, std::uint64_t seed, at::Device device);

  /// The stage's weights and states: what an operator reads.
  const std::unordered_map<TensorId, at::Tensor>& values() const { return values_; }
  void set_state(TensorId state, const at::Tensor& value);

  void zero_gradients();
  /// From now until `end_backward`, a bucket is reported as soon as its last gradient is final.
  void begin_last_backward(GradientListener& listener);
  /// Reports the buckets that have a parameter without a gradient in this step.
  void end_last_backward();

  /// One optimizer step, with PyTorch's semantics of SGD and Adam.
  void update(const Optimizer& optimizer);
  /// The flat gradient of plan bucket `bucket`; undefined when it is not this stage's.
  at::Tensor gradient(int bucket) const;

 private:
  struct Flat {
    int bucket = 0;              // index into Plan::buckets
    at::Tensor value, gradient;  // flat, same layout
    at::Tensor first, second;    // optimizer state: momentum, or Adam's moments
    int members = 0;
    int missing = 0;  // gradients still to come in the last backward
    bool reported = false;
  };
  Status add_bucket(const Graph& graph, const PlanBucket& bucket, int index,
                    const std::unordered_map<std::string, TensorId>& by_name, at::Device device);
  void add_member(TensorId id, std::size_t flat, std::int64_t offset, at::Tensor initial);
  void gradient_ready(std::size_t flat);

  std::uint64_t seed_ = 0;
  std::int64_t updates_ = 0;
  std::vector<Flat> flats_;
  std::unordered_map<TensorId, at::Tensor> values_;
  std::vector<std::shared_ptr<torch::autograd::Node>> hooked_;  // keeps the hooks alive
  GradientListener* listener_ = nullptr;
};

}  // namespace agpcs
