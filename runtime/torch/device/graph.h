// SPDX-License-Identifier: Apache-2.0
// What a stage needs besides its operators so that its steps can be recorded as CUDA graphs: inputs
// that stay where they are, and memory that nothing else gets.
#pragma once

#include "runtime/torch/ops/ops.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// Reserves memory for a recording: while this object exists, nothing else gets the memory that was
/// allocated between `begin` and `end`. Only one thread uses it.
class GraphMemory {
 public:
  virtual ~GraphMemory() = default;
  virtual void begin() = 0;
  virtual void end() = 0;
};
/// Returns null if nothing can be recorded: the device is not CUDA.
std::unique_ptr<GraphMemory> make_graph_memory(at::Device device);

/// An input of a stage.
struct HeldInput {
  TensorId id = kNone;
  Shape shape;
  DType type = DType::kFp32;
};

/// The inputs of all micro-batches of a step, in memory that stays where it is.
class HeldInputs {
 public:
  /// `samples` are this rank's, by micro-batch.
  void allocate(const std::vector<HeldInput>& inputs, const std::vector<std::int64_t>& samples,
                at::Device device);
  /// Adds the inputs of `micro_batch` to `values`.
  void put(std::size_t micro_batch, std::unordered_map<TensorId, at::Tensor>& values) const;
  /// Begins to copy new values into the inputs of `micro_batch`, in the order of `allocate`.
  void load(std::size_t micro_batch, const std::vector<at::Tensor>& values);

 private:
  struct Held {
    TensorId id = kNone;
    at::Tensor here;
  };
  std::vector<std::vector<Held>> by_micro_batch_;
};

}  // namespace agpcs
