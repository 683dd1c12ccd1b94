// SPDX-License-Identifier: Apache-2.0
// The LibTorch executor: runs a stage's ONNX operators with ATen and differentiates them with
// autograd. This header needs no LibTorch, so code that uses it compiles without LibTorch.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/support/rate_schedule.h"
#include "runtime/support/recording.h"
#include "runtime/torch/data/data.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct TorchOptions {
  std::uint64_t seed = 0;                  ///< for missing weights and for dropout
  int threads = 0;                         ///< for each operator; 0: LibTorch's choice
  std::string device = "cpu";              ///< "cpu", "cuda", "cuda:1"
  std::unique_ptr<DataSource> data;        ///< null: `make_synthetic_data(graph, seed)`
  std::unique_ptr<DataSource> evaluation;  ///< has rows; null: `begin_evaluation` is refused
  bool fixed_batch = false;                ///< every step trains on the samples of step 0
  bool read_ahead = false;  ///< on a CPU, too: a device's next samples are read anyway
  int batches = 1;          ///< of a step (ReplayOptions::batches)
  RateSchedule schedule;    ///< of the learning rate; the plan's is the base
};

/// The time that an operator took in one pass.
struct OperatorTime {
  OpId op = kNone;  ///< kNone: exchanges of a team, and what comes before its first operator
  double seconds = 0;
};

/// Learns, after every pass of the stage, what its operators took. The times cover the pass
/// without gaps, so they add up to it. What comes before the first operator (loading inputs)
/// counts for the first one; what comes after the last operator (copies for other stages, the
/// loss's value, freed memory) counts for the last one. On a CPU, seconds are the calling
/// thread's processor time, which stands still while the system runs something else; on CUDA they
/// are the device's.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// `pass` is kForward or kBackward; `operators` are in the order in which they ran. A backward
  /// pass lists no operator that has no gradient, or whose output is one of its inputs unchanged.
  /// If the stage recomputes, the second forward pass of each segment is reported, too, and the
  /// backward pass segment by segment: what is kept first, then each segment's two passes. A member
  /// of a team reports what it computes of each operator.
  virtual void pass_done(Opcode pass, const std::vector<OperatorTime>& operators) = 0;
};

/// An Executor that shows its weights and the times of its operators.
class TorchExecutor : public Executor, public RecordingExecutor {
 public:
  /// Returns the values of a parameter or state tensor of this rank's stages, row-major, as fp32; a
  /// member of a team, those that it holds.
  /// Needs: `prepare` was called. Error: no stage has such a tensor.
  virtual Result<std::vector<float>> value(std::string_view name) const = 0;
  /// Returns the names of the parameters and state tensors, of each stage in the graph's order.
  virtual std::vector<std::string> names() const = 0;
  /// Returns what the user should know, one line each ("fp16 is computed in fp32 ..."); may
  /// be empty.
  virtual std::string notes() const = 0;

  /// Reports the passes from now on to `observer`. nullptr, as at the start, means no reports and
  /// no cost. Needs: `prepare` was called, and no micro-batch is between its forward and its
  /// backward pass. Errors: this build cannot time operators on the device; the plan parts backward
  /// passes.
  virtual Status observe(OperatorObserver* observer) = 0;
  /// Returns the seconds that this executor has computed since some moment, counted as for an
  /// observer. Waits for the device's work. `ahead`: a GPU begins with what follows only when it is
  /// asked again, or an observed pass ends, or after 200 ms, as the host may wait for it. So its
  /// seconds are those of kernels one after the other, as in a recorded step, unless launching them
  /// takes longer.
  virtual double busy_seconds(bool ahead) = 0;
};

/// Makes an executor for a rank of plans over `graph`, a training graph that must outlive it.
/// `prepare` returns the errors: operators outside `executed_operators` (it names all of them), a
/// stage or cut that is not of this graph, or a missing device.
std::unique_ptr<TorchExecutor> make_torch_executor(const Graph& graph, TorchOptions options);

/// One line of the table of operators that the executor runs.
struct ExecutedOperator {
  std::string_view domain;  ///< "" is ai.onnx
  std::string_view type;
};
/// Returns all operators that the executor runs, sorted by domain and type.
std::vector<ExecutedOperator> executed_operators();

/// Returns the version of LibTorch that this was built with.
std::string libtorch_version();

struct Accelerator {
  std::string name;  ///< empty: the device is a CPU
  std::int64_t memory_bytes = 0;
};
Result<Accelerator> accelerator_of(const std::string& device);

/// Returns the most bytes that LibTorch has had allocated on `device` at a time in this process; 0
/// if that is a CPU. Needs: `accelerator_of` knows the device.
std::int64_t peak_memory_of(const std::string& device);

/// Gives the calling thread a CUDA stream of its own for what it computes on `device` from now on
/// (NcclOptions::compute_stream), because the default stream cannot be recorded. Null: nothing is
/// computed on streams. Error: kUnavailable, the device is missing.
Result<void*> own_compute_stream(const std::string& device);

/// Zeroed fp32 memory on a device.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual Buffer buffer() = 0;
};
/// Allocates memory on a device. Error: kUnavailable, the device is missing or has less than
/// `bytes` left.
Result<std::unique_ptr<DeviceMemory>> allocate_on(const std::string& device, std::int64_t bytes);

}  // namespace agpcs
