// SPDX-License-Identifier: Apache-2.0
// Reads what torch.profiler writes: the calls of a program, nested by thread, with the time that a
// device worked for each.
#pragma once

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// The longest trace that is read.
inline constexpr std::int64_t kMostTraceBytes = std::int64_t{4} << 30;

/// An input of an operator: a tensor, or a list of tensors, whose element types no trace has.
struct TracedInput {
  std::optional<DType> type;
  std::vector<std::int64_t> dims;
  std::vector<std::vector<std::int64_t>> list;
};

/// The inputs of an operator. Many calls share one.
struct TracedInputs {
  std::vector<TracedInput> tensors;   ///< by position; one without type and list is no tensor
  std::vector<std::string> concrete;  ///< by position: "[1, 1]", "True"; "" where it is a tensor
  std::string text;                   ///< "(fp32[8,16], fp32[16,4])", then what is concrete
};

struct TracedCall {
  enum class Kind : std::uint8_t {
    kOperator,  ///< "aten::addmm"
    kBackward,  ///< "AddmmBackward0": the backward pass of the operator with the same `sequence`
    kModule,    ///< "Linear_0": the first module of this class that was called
    kStep,      ///< "ProfilerStep#3"
    kUpdate,    ///< "SGD": a step of this optimizer
    kBegin,     ///< "SGD": the optimizer's gradients are zeroed
    kLaunch,    ///< a call of CUDA
  };
  Kind kind = Kind::kOperator;
  int name = 0;                   ///< index in KinetoTrace::names
  int inputs = -1;                ///< index in KinetoTrace::inputs; -1: it has no shapes
  std::int64_t thread = 0;        ///< as the trace numbers them
  std::int64_t sequence = -1;     ///< of a forward operator or its backward pass; -1: none
  std::int64_t external = -1;     ///< "External id", by which kernels name operators
  std::int64_t correlation = -1;  ///< of a launch: by which kernels name it
  double start = 0, end = 0;      ///< seconds since the first call
  double device = 0;              ///< seconds of the kernels that it launched itself
  std::size_t after = 0;          ///< index of the first call behind it that is not inside it
};

struct KinetoTrace {
  std::string file;
  std::vector<std::string> names;
  std::vector<TracedInputs> inputs;
  /// By thread and start. The calls inside call i follow it, up to `after`.
  std::vector<TracedCall> calls;
  std::vector<std::string> gpus;  ///< names of the machine's GPUs, "NVIDIA A100-SXM4-80GB"
  std::int64_t gpu_memory = 0;    ///< bytes of the first; 0: not told
  bool on_gpu = false;            ///< kernels were traced: they are the time, not the calls
  bool tf32 = false;              ///< a kernel multiplied in tf32
  bool has_modules = false;
  double unlinked = 0;       ///< seconds of kernels that no call has launched
  double communication = 0;  ///< seconds of NCCL's kernels, which are no call's
  int kernel_devices = 0;    ///< how many GPUs the kernels ran on

  std::string_view name_of(const TracedCall& call) const {
    return names[static_cast<std::size_t>(call.name)];
  }
  /// Returns the seconds that call i took: those of the kernels launched inside it, or by the
  /// clock.
  double seconds(std::size_t i) const;

  std::vector<double> device_before;  ///< sums of TracedCall::device of the calls before each
};

/// Reads a trace. Errors (kInvalidInput) name the file: it is not JSON (with line, column and
/// reason) or no trace of torch.profiler; it has no steps, no operators, no shapes of operators; or
/// the machine has GPUs and no kernel was traced. Cost: the text and 100 bytes for a call.
Result<KinetoTrace> parse_kineto_trace(std::string_view text, const std::string& file);
Result<KinetoTrace> read_kineto_trace(const std::string& path);

}  // namespace agpcs
