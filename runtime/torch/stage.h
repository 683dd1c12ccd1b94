// SPDX-License-Identifier: Apache-2.0
// StageCode: the operators of one stage, bound to kernels and ready to run on a number of samples.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/torch/ops/ops.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace agpcs {

class LabelCounter;
class ParameterUses;
class PassClock;

/// Where segments of a stage end (ir/strategy/segments.h), and what these do.
struct SegmentEnds {
  std::vector<std::size_t> ends;
  bool recomputed = true;
  bool in_host = false;  ///< what they keep between the passes lies in the memory of the host
};

class StageCode {
 public:
  /// Binds `ops` (a stage's operators, ascending) for `samples` samples on `device`. Tensors in
  /// `keep` survive a run; all others are dropped after their last use. Errors: operators have no
  /// kernel (it names all of them), or a constant has no values.
  static Result<StageCode> compile(const Graph& graph, const std::vector<OpId>& ops,
                                   std::int64_t samples, const std::vector<TensorId>& keep,
                                   at::Device device, const SegmentEnds& segments = {});

  /// Returns, ascending, the tensors that the stage reads and does not make, except constants.
  const std::vector<TensorId>& inputs() const { return inputs_; }

  /// Operators that run together. What follows the given segments is one segment more, which
  /// is not recomputed, and keeps all on the device.
  struct Segment {
    std::size_t first = 0, end = 0;  ///< indices of operators
    bool recomputed = false, in_host = false;
    std::vector<TensorId> inputs;   ///< as of the stage: ascending, without constants
    std::vector<TensorId> results;  ///< ascending: what it makes that is in `keep` or read after it
  };
  /// Returns the segments, in the operators' order. There is one if none were given.
  const std::vector<Segment>& segments() const { return segments_; }
  /// Returns the stage's constants on the device.
  const std::unordered_map<TensorId, at::Tensor>& constants() const { return constants_; }
  /// Returns the operator of an index in a segment.
  OpId operator_at(std::size_t index) const { return steps_[index].op; }

  /// Returns why a pass cannot be recorded as a CUDA graph, as far as the operators show: "node
  /// 'drop' (Dropout): ..."; empty: no obstacle is known.
  std::string recording_obstacle() const;

  struct Run {
    std::uint64_t seed = 0;
    std::int64_t first_sample = 0;  ///< number of row 0's sample, over all steps
    /// RandomSource::before, and an int64 of it on a GPU that draws itself.
    std::int64_t samples_before = 0;
    const std::int64_t* samples_before_here = nullptr;
    /// Learns batch norm's new running statistics: the state tensor and its new value.
    std::function<void(TensorId state, const at::Tensor& value)> new_state;
    PassClock* clock = nullptr;  ///< learns when each operator begins, here and in backward passes
    const LabelCounter* labels = nullptr;  ///< counts for losses that are means over labels
    bool evaluates = false;                ///< without dropout, with running statistics
    PutOffProducts* put_off = nullptr;     ///< given: takes the weights' gradients that may wait
    /// Learns when operators begin and end; null where ranks divide no parameters. `again`: they
    /// compute again, within a backward pass that has what they read.
    ParameterUses* uses = nullptr;
    bool again = false;
    OpId* asked_device = nullptr;  ///< set to an operator that asks the device for values
  };
  /// Computes all operators. `values` holds the inputs (by tensor) and receives the kept tensors.
  /// Throws KernelError with the operator's name.
  void run(std::unordered_map<TensorId, at::Tensor>& values, const Run& run) const;
  /// The same for the operators of one segment. Results stay until a later segment has last used
  /// them.
  void run_segment(const Segment& segment, std::unordered_map<TensorId, at::Tensor>& values,
                   const Run& run) const;

 private:
  struct Step {
    OpId op = kNone;
    Kernel kernel = nullptr;
    int batch_axis = kNone;  // batch axis of the first input
    /// The parameter whose gradient may wait for a weight pass; kNone: it has none.
    TensorId put_off = kNone;
    Tensors host;                // constants among the inputs, in host memory
    std::vector<TensorId> dead;  // tensors that are last used here
  };
  void bind(const std::vector<OpId>& ops);
  Status load_constants(const std::vector<TensorId>& keep, at::Device device);
  void find_last_uses(const std::vector<TensorId>& keep);
  void find_segments(const std::vector<TensorId>& keep, const SegmentEnds& segments);
  void run_step(const Step& step, std::unordered_map<TensorId, at::Tensor>& values,
                const Run& run) const;

  const Graph* graph_ = nullptr;
  bool draws_here_ = false;
  std::int64_t samples_ = 0;
  std::vector<Step> steps_;
  std::vector<TensorId> inputs_;
  std::vector<Segment> segments_;
  std::unordered_map<TensorId, at::Tensor> constants_;  // on the device
  std::vector<TensorId> fixed_results_;                 // of `keep`, those that are in constants_
};

/// Returns whether a device draws random numbers itself; else the host does.
bool draws_itself(at::Device device);

/// Returns the tensor of a graph's constant for `samples` samples, in host memory. Error: its bytes
/// are missing or do not fit its shape.
Result<at::Tensor> constant_tensor(const Tensor& tensor, std::int64_t samples);

/// Returns the first axis that grows with the batch; kNone: there is none.
int batch_axis_of(const Shape& shape);

/// Returns the error that no kernel runs some of `ops`; it names all of them.
Status check_kernels(const Graph& graph, const std::vector<OpId>& ops);

/// Returns whether a tensor has the same value in each pass: it is a constant, or prepared.
bool is_fixed(const Tensor& tensor);
using FixedTensors = std::map<TensorId, at::Tensor>;
/// Returns such tensors for `samples` samples, in host memory; the graph's prologue makes the
/// prepared ones. Errors: as of `constant_tensor`; an operator has no kernel, or fails (it is
/// named).
Result<FixedTensors> fixed_tensors(const Graph& graph, const std::vector<TensorId>& wanted,
                                   std::int64_t samples);

/// Returns "node 'drop' (Dropout): why".
std::string describe_obstacle(const Op& op, const char* why);

/// Returns the first line of a foreign exception's text, without its backtrace.
std::string brief(const std::exception& error);
/// Returns the error that `what` failed with `error`; it says so if memory was lacking.
Status failure_of(std::string_view what, const std::exception& error);

}  // namespace agpcs
