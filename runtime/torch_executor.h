// SPDX-License-Identifier: Apache-2.0
// The LibTorch executor: runs a stage's ONNX operators with ATen and differentiates them with
// autograd. This header needs no LibTorch, so its users compile without it.
#pragma once

#include "ir/graph.h"
#include "runtime/torch_data.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct TorchOptions {
  std::uint64_t seed = 0;            ///< of missing weights and of dropout
  int threads = 0;                   ///< of each operator; 0: LibTorch's choice
  std::string device = "cpu";        ///< "cpu", "cuda", "cuda:1"; CUDA has not been run yet
  std::unique_ptr<DataSource> data;  ///< null: `make_synthetic_data(graph, seed)`
  bool fixed_batch = false;          ///< every step trains on the samples of step 0
};

/// What an operator took in one pass.
struct OperatorTime {
  OpId op = kNone;
  double seconds = 0;
};

/// Told of every whole pass of the stage, when it is over, what its operators took: all of the
/// pass, without gaps, so that they add up to it. What comes before the first operator (loading
/// inputs) is the first one's, what comes after the last one (copies for other stages, the loss's
/// value, freed memory) the last one's. On a CPU seconds are the calling thread's processor time,
/// which stands still while the system lets something else run; on CUDA they are the device's.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// `pass` is kForward or kBackward, `operators` in the order in which they ran. Backward, those
  /// without a gradient, or whose output is one of their inputs as it came, are not there. Where
  /// the stage recomputes, its second forward is told as one, too.
  virtual void pass_done(Opcode pass, const std::vector<OperatorTime>& operators) = 0;
};

/// An Executor whose weights and operators can be looked at.
class TorchExecutor : public Executor {
 public:
  /// The values of a parameter or state tensor of this rank's stage, row-major, as fp32.
  /// Error: the stage has no such tensor. Needs `prepare`.
  virtual Result<std::vector<float>> value(std::string_view name) const = 0;
  /// Names of the stage's parameters and state tensors, in the graph's order.
  virtual std::vector<std::string> names() const = 0;
  /// What the user should know, one line each ("fp16 is computed in fp32 ..."); empty when nothing.
  virtual std::string notes() const = 0;

  /// Tells `observer` of the passes from now on; nullptr, as at the start: nobody, at no cost.
  /// Needs `prepare`, and no micro-batch between its forward and its backward. Error: a device
  /// whose operators this build cannot time.
  virtual Status observe(OperatorObserver* observer) = 0;
  /// Seconds that this executor has computed since some moment, as an observer's are counted. Waits
  /// for the device's work.
  virtual double busy_seconds() const = 0;
};

/// An executor for the stages of plans over `graph`, a training graph that outlives it.
/// Errors come from `prepare`: operators outside `executed_operators` (all of them are named),
/// a stage or cut that is not of this graph, a device that is not there.
std::unique_ptr<TorchExecutor> make_torch_executor(const Graph& graph, TorchOptions options);

/// One line of the table of operators that the executor runs.
struct ExecutedOperator {
  std::string_view domain;  ///< "" is ai.onnx
  std::string_view type;
};
/// All operators that the executor runs, sorted by domain and type.
std::vector<ExecutedOperator> executed_operators();

/// The version of LibTorch that this was built with.
std::string libtorch_version();

struct Accelerator {
  std::string name;  ///< empty: the device is a CPU
  std::int64_t memory_bytes = 0;
};
Result<Accelerator> accelerator_of(const std::string& device);

/// Gives the calling thread a CUDA stream of its own for what it computes on `device` from now on
/// (NcclOptions::compute_stream): the default stream cannot be recorded. Null where nothing is
/// computed on streams. Error: kUnavailable, a device that is not there.
Result<void*> own_compute_stream(const std::string& device);

/// fp32 memory on a device, zeroed.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual Buffer buffer() = 0;
};
/// Error: kUnavailable, a device that is not there or has less than `bytes` left.
Result<std::unique_ptr<DeviceMemory>> allocate_on(const std::string& device, std::int64_t bytes);

}  // namespace agpcs
