// SPDX-License-Identifier: Apache-2.0
// What a stage needs beside its operators for its steps to be recorded as CUDA graphs: inputs that
// stay where they are, and memory that nobody else is given.
#pragma once

#include "runtime/torch_ops.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// While it is there, what is recorded has the memory for itself that was allocated between `begin`
/// and `end`. One thread.
class GraphMemory {
 public:
  virtual ~GraphMemory() = default;
  virtual void begin() = 0;
  virtual void end() = 0;
};
/// Null where nothing is recorded: not CUDA.
std::unique_ptr<GraphMemory> make_graph_memory(at::Device device);

/// An input of a stage, for this rank's samples.
struct HeldInput {
  TensorId id = kNone;
  std::vector<std::int64_t> dims;
  DType type = DType::kFp32;
};

/// The inputs of all micro-batches of a step in memory that stays where it is.
class HeldInputs {
 public:
  void allocate(const std::vector<HeldInput>& inputs, std::size_t micro_batches, at::Device device);
  /// Adds those of `micro_batch` to `values`.
  void put(std::size_t micro_batch, std::unordered_map<TensorId, at::Tensor>& values) const;
  /// Brings new values to all of them; `fill` writes one input's, as its own type. What was copied
  /// by the call before has arrived.
  Status load(const std::function<Status(std::size_t micro_batch, TensorId id, void* out)>& fill);

 private:
  struct Held {
    TensorId id = kNone;
    at::Tensor host, here;
  };
  std::vector<std::vector<Held>> by_micro_batch_;
};

}  // namespace agpcs
