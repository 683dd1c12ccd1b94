// SPDX-License-Identifier: Apache-2.0
// What a step says of itself without stopping the device that computes it: when its computations
// ran, and its loss. On a CUDA device calls return long before their work is done.
#pragma once

#include "runtime/torch_ops.h"

#include <agpcs/step_times.h>

#include <cstddef>
#include <memory>

namespace agpcs {

/// When computations ran, of the last step. One thread.
class ComputeTimes {
 public:
  virtual ~ComputeTimes() = default;
  /// Computation `slot` is what is asked of the device between the two.
  virtual void begin(std::size_t slot) = 0;
  virtual void end(std::size_t slot) = 0;
  /// Begin and end were recorded: they are told anew in each replay, of which this is the next.
  virtual void replayed() = 0;
  /// Needs: both were called. Waits for all that has been asked.
  virtual InstructionTime of(std::size_t slot) = 0;
};
/// For `slots` computations a step. Null on a CPU, where a call ends with what it computes.
std::unique_ptr<ComputeTimes> make_compute_times(at::Device device, std::size_t slots);

/// The sum of a step's losses. One thread.
class StepLoss {
 public:
  virtual ~StepLoss() = default;
  virtual void clear() = 0;
  virtual void add(const at::Tensor& part) = 0;
  /// Waits for what has been added, not for what the device has been asked since. Where `add` was
  /// recorded: the last replay's, which is over.
  virtual double value() = 0;
};
std::unique_ptr<StepLoss> make_step_loss(at::Device device);

/// Memory of the host for `dims`; on the way to a CUDA device page-locked, so that copying from it
/// stops nobody.
at::Tensor host_memory(const std::vector<std::int64_t>& dims, at::ScalarType type,
                       at::Device device);

}  // namespace agpcs
