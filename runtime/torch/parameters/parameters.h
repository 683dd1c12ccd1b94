// SPDX-License-Identifier: Apache-2.0
// StageParameters: a stage's weights, their gradients in flat buckets, and the optimizer's state.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/torch/ops/ops.h"
#include "runtime/torch/parameters/learned_state.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {

/// What a rank holds of its stage's weights and states, if that is not all of each.
class HeldParts {
 public:
  virtual ~HeldParts() = default;
  virtual std::int64_t elements(TensorId id) const = 0;
  /// Returns what it holds of a tensor.
  virtual at::Tensor part_of(TensorId id, const at::Tensor& whole) const = 0;
  /// Returns whether a parameter's gradient counts for the norm; of ranks that hold the same, one
  /// says so.
  virtual bool counts(TensorId id) const = 0;
  /// Says in an item of a tensor which elements it holds, if it holds a part along an axis.
  virtual void describe(TensorId id, StateItem& item) const = 0;
};

class HostWindow;
struct UpdateTensors;

class StageParameters {
 public:
  StageParameters();
  ~StageParameters();
  StageParameters(const StageParameters&) = delete;
  StageParameters& operator=(const StageParameters&) = delete;

  /// A stage, and one of its ranks.
  struct Holder {
    int stage = 0, rank = 0;
  };
  /// Allocates and initializes (from the file's values, or from `seed` and the name) every
  /// parameter and state tensor in `tensors`. The parameters of a bucket lie in one flat buffer in
  /// member order. Where somebody reduces them, their gradients lie in another buffer of the same
  /// layout. What the optimizer
  /// remembers has the same layout, too, and starts at zero; it lies in the host's memory where the
  /// plan says so. Of a sharded bucket, the optimizer
  /// remembers only the elements that the rank owns. Buckets of which ranks divide gradients have
  /// one buffer of gradients together, and each has the sums of the elements that the rank owns. Of
  /// buckets of which ranks divide parameters, there are the elements that it owns; the buffer
  /// of all has memory only from `gather` to `release`. Errors:
  /// a bucket member is not among `tensors`, or has another element count.
  /// Given `parts`, all this is of what they say that the rank holds; needs: no bucket is sharded.
  Status allocate(const Graph& graph, const Plan& plan, const Holder& holder,
                  const std::vector<TensorId>& tensors, std::uint64_t seed, at::Device device,
                  const HeldParts* parts = nullptr);

  /// Returns the stage's weights and states, which operators read.
  const std::unordered_map<TensorId, at::Tensor>& values() const { return values_; }
  void set_state(TensorId state, const at::Tensor& value);

  /// Begins a step's gradients. On a CPU, autograd's first gradient of a parameter is copied to the
  /// flat buffer, where there is nothing to add it to. Elsewhere buffers become zero: a recorded
  /// step adds to them whatever it is.
  void clear_gradients();
  /// Says that autograd goes back through operators that read `tensors` at a time of its own: a
  /// parameter gets as many gradients in a backward pass as there are such calls with it.
  void expect_gradients(const std::vector<TensorId>& tensors);
  /// From now until `end_backward`, reports each bucket as soon as its last gradient is final. In a
  /// pass that is not the step's `last`, that is only so of those whose gradients ranks divide.
  void begin_backward(bool last, GradientListener& listener);
  /// The same for a weight pass, which gives each of `parameters` one gradient, and no others.
  /// Buckets without such parameters are complete.
  void begin_weight_pass(const std::set<TensorId>& parameters, bool last,
                         GradientListener& listener);
  /// Reports the buckets that have a parameter without a gradient in this pass.
  void end_backward();
  /// See `Executor::fill_bucket`.
  Status fill(int bucket);
  Status keep_part(int bucket);

  /// See `Executor::gather`.
  Result<at::Tensor> gather(int bucket);
  /// Frees the memory of a bucket that was gathered and is needed no more. If it has been gathered
  /// again since, for the next pass, it has that memory then.
  void release(int bucket);
  /// `need(bucket)` waits until a bucket that is gathered is there. For those that no operator of a
  /// backward pass needs, `end_backward` calls it.
  void need_by(std::function<void(int)> need) { need_ = std::move(need); }
  /// Returns whether `tensor` lies in memory that is freed so.
  bool is_freed_by_passes(const at::Tensor& tensor) const;

  /// Copies the numbers that depend on the step to the device, if it needs them there. Call it
  /// before `update` and before a replay of it. Needs: what the last call copied has been used.
  void load_step(const Optimizer& optimizer, std::int64_t step);
  /// See `Executor::squares`.
  Result<double> squares(int bucket) const;
  void scale(double factor);
  /// Makes the optimizer's step for step `step` (from 0), with PyTorch's semantics of SGD and Adam,
  /// whose t is `step` + 1. Of sharded buckets, only the elements that this rank owns are updated.
  void update(const Optimizer& optimizer, std::int64_t step);
  /// Return the flat gradient and the flat values of plan bucket `bucket`; undefined if the bucket
  /// is not this stage's. Where no ranks reduce it, on a CPU, the buffer of a gradient is there
  /// from the first call on: until then a rank keeps autograd's own gradients, and not beyond the
  /// step.
  at::Tensor gradient(int bucket);
  at::Tensor value(int bucket) const;
  /// Returns the gradient of a member of plan bucket `bucket`; undefined if it has none.
  at::Tensor member_gradient(int bucket, std::size_t member) const;
  /// Returns the flat gradient of plan bucket `bucket` rounded to `type`, in the same memory each
  /// time; undefined if the bucket is not this stage's.
  at::Tensor round(int bucket, at::ScalarType type);
  /// Writes the bucket's gradient from the memory of `round`, to which other ranks' gradients have
  /// been added.
  void widen(int bucket);

  /// Lists all that is learned, in the order of `tensors`: "value", then what the optimizer
  /// remembers, if this rank has any of it. Elements are words of four bytes. An integer or fp64
  /// tensor, which cannot be in a bucket, is read as its bytes in memory, with the last word filled
  /// up with zeros.
  const LearnedState& state() const { return state_; }

 private:
  struct Flat {
    int bucket = 0;              // index into Plan::buckets
    at::Tensor value, gradient;  // flat, same layout; no gradient until it is asked for
    at::Tensor rounded;          // the rounded gradient, once `round` was called
    // Momentum, or Adam's moments, of the elements in `owned`; undefined: the optimizer has none.
    at::Tensor first, second;
    ElementRange owned;
    at::Tensor kept;       // sums of the elements in `owned`; undefined: `gradient` has the sums
    at::Tensor part;       // values of those in `owned`; undefined: `value` has memory all the time
    bool held = false;     // `value` has memory
    c10::DataPtr ahead;    // memory for the next pass, gathered while this one reads `value`
    int gradients = 0;     // of its parameters in a backward pass, counted by segment
    int missing = 0;       // of those, still to come in the pass
    bool reported = true;  // nothing of it is to be reported in the pass
  };
  std::vector<at::Tensor> sums_of(const Flat& flat) const;
  std::vector<at::Tensor> counted_gradients(const Flat& flat) const;
  Status add_bucket(const Graph& graph, const PlanBucket& bucket, int index,
                    const std::unordered_map<std::string, TensorId>& by_name, at::Device device,
                    bool reduced);
  /// Returns the elements of a bucket that this rank holds.
  std::int64_t held_elements(const PlanBucket& bucket,
                             const std::unordered_map<std::string, TensorId>& by_name) const;
  at::Tensor held(TensorId id, at::Tensor whole) const {
    return parts_ == nullptr ? std::move(whole) : parts_->part_of(id, whole);
  }
  static void release(Flat& flat);
  const Flat* flat_of(int bucket) const;
  Flat* flat_of(int bucket) { return const_cast<Flat*>(std::as_const(*this).flat_of(bucket)); }
  /// `accumulates`: autograd adds to the bucket's buffer; otherwise it makes tensors of its own.
  void add_member(TensorId id, std::size_t flat, std::int64_t offset, at::Tensor initial,
                  bool accumulates);
  struct Member {
    at::Tensor value;  // a leaf of autograd's graph
    // Its place in the flat buffer; undefined: there is none yet, or ranks divide gradients.
    at::Tensor gradient;
    std::int64_t offset = 0;  // in the bucket
    std::size_t flat = 0;
    bool counts = true;  // for the norm
  };
  static at::Tensor place_in(const Flat& flat, const Member& member);
  static void place(const Member& member);
  void hold_gradient(Flat& flat);
  void update_member(const Optimizer& optimizer, std::int64_t step, const Member& member);
  void step_of(const Optimizer& optimizer, std::int64_t step, const UpdateTensors& of);
  void make_window(at::Device device);
  void gradient_ready(const Member& member);

  void add_state(const Tensor& tensor, TensorId id);
  void add_state(const Tensor& tensor, TensorId id, const char* slot, const at::Tensor& values,
                 std::int64_t before = 0, std::int64_t after = 0);

  // Says where a parameter lies in its bucket.
  struct Place {
    std::size_t flat = 0;
    std::int64_t offset = 0, elements = 0;
  };
  std::uint64_t seed_ = 0;
  const HeldParts* parts_ = nullptr;    // null: this rank holds all of each tensor
  at::Tensor host_numbers_, numbers_;   // of an update; undefined: the host passes them
  std::unique_ptr<HostWindow> window_;  // null: the optimizer's state is on the device
  at::Tensor filled_;                   // gradients of the divided bucket that is summed
  std::vector<Flat> flats_;
  std::vector<Member> members_;
  std::unordered_map<TensorId, at::Tensor> values_;
  std::unordered_map<TensorId, Place> places_;
  LearnedState state_;
  struct Hooked;
  std::unique_ptr<Hooked> hooked_;
  GradientListener* listener_ = nullptr;
  std::function<void(int)> need_;
};

}  // namespace agpcs
