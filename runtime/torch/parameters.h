// SPDX-License-Identifier: Apache-2.0
// StageParameters: a stage's weights, their gradients in flat buckets, and the optimizer's state.
#pragma once

#include "ir/graph.h"
#include "runtime/torch_ops.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {

class StageParameters {
 public:
  StageParameters();
  ~StageParameters();
  StageParameters(const StageParameters&) = delete;
  StageParameters& operator=(const StageParameters&) = delete;

  /// Allocates and initializes (from the file's values or from `seed` and the name) every parameter
  /// and state tensor in `tensors`. Parameters of bucket b lie in one flat buffer in member order,
  /// their gradients in another of the same layout; autograd adds into the latter directly. So does
  /// what the optimizer remembers, all zero at first.
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

  /// Before `update`, and before a replay of it: brings what follows from the step's number to the
  /// device, where it is on one. What the call before brought has been used.
  void load_step(const Optimizer& optimizer, std::int64_t step);
  /// The optimizer's step for step `step` (from 0), with PyTorch's semantics of SGD and Adam, whose
  /// t is `step` + 1.
  void update(const Optimizer& optimizer, std::int64_t step);
  /// The flat gradient of plan bucket `bucket`; undefined when it is not this stage's.
  at::Tensor gradient(int bucket) const;
  /// The flat gradient of plan bucket `bucket` rounded to `type`, in the same memory each time;
  /// undefined when it is not this stage's.
  at::Tensor round(int bucket, at::ScalarType type);
  /// The bucket's gradient from what `round` gave, which other ranks have been added to.
  void widen(int bucket);

  /// All that is learned, in the order of `tensors`: "value", then what the optimizer remembers.
  /// Elements are words of four bytes: an integer or fp64 tensor, which no bucket has, goes by its
  /// bytes, as they lie, the last word filled up with zeros.
  std::vector<StateItem> state() const;
  /// Error: not an item of `state`, or no such elements.
  Status read(const StateItem& item, std::int64_t first, std::int64_t count, float* out) const;
  Status write(const StateItem& item, std::int64_t first, std::int64_t count,
               const float* words) const;

 private:
  struct Flat {
    int bucket = 0;              // index into Plan::buckets
    at::Tensor value, gradient;  // flat, same layout
    at::Tensor rounded;          // the gradient, once asked for
    at::Tensor first, second;    // momentum, or Adam's moments; undefined: the optimizer has none
    int members = 0;
    int missing = 0;  // gradients still to come in the last backward
    bool reported = false;
  };
  Status add_bucket(const Graph& graph, const PlanBucket& bucket, int index,
                    const std::unordered_map<std::string, TensorId>& by_name, at::Device device);
  Flat* flat_of(int bucket);
  void add_member(TensorId id, std::size_t flat, std::int64_t offset, at::Tensor initial);
  void gradient_ready(std::size_t flat);

  // A state item's tensor, as bytes.
  struct Piece {
    StateItem item;
    at::Tensor bytes;
  };
  void add_pieces(const std::string& tensor, TensorId id);
  void add_piece(const std::string& tensor, const char* slot, const at::Tensor& values);
  Result<at::Tensor> bytes_of(const StateItem& item, std::int64_t first, std::int64_t count) const;

  // Where the parameter lies in its bucket.
  struct Place {
    std::size_t flat = 0;
    std::int64_t offset = 0, elements = 0;
  };
  std::uint64_t seed_ = 0;
  at::Tensor host_numbers_, numbers_;  // Adam's; undefined: the host passes them
  std::vector<Flat> flats_;
  std::unordered_map<TensorId, at::Tensor> values_;
  std::unordered_map<TensorId, Place> places_;
  std::vector<Piece> pieces_;
  std::map<std::pair<std::string, std::string>, std::size_t> piece_of_;  // by tensor and slot
  struct Hooked;
  std::unique_ptr<Hooked> hooked_;
  GradientListener* listener_ = nullptr;
};

}  // namespace agpcs
