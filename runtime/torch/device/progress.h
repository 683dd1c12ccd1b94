// SPDX-License-Identifier: Apache-2.0
// What a step reports without stopping the device that computes it: when its computations ran, and
// its loss. On a CUDA device, calls return long before their work is done.
#pragma once

#include "runtime/torch/ops/ops.h"

#include <agpcs/step_times.h>

#include <cstddef>
#include <exception>
#include <memory>

namespace agpcs {

/// When computations of the last step ran. Only one thread uses it.
class ComputeTimes {
 public:
  virtual ~ComputeTimes() = default;
  /// Mark computation `slot`: the work given to the device between the two calls.
  virtual void begin(std::size_t slot) = 0;
  virtual void end(std::size_t slot) = 0;
  /// Says that begin and end were recorded and that their next replay begins; each replay sets
  /// them anew.
  virtual void replayed() = 0;
  /// Returns when a computation ran. Needs: `begin` and `end` were called. Waits for all work given
  /// to the device.
  virtual InstructionTime of(std::size_t slot) = 0;
};
/// Makes one for `slots` computations a step. Returns null on a CPU, where a call ends with
/// its computation.
std::unique_ptr<ComputeTimes> make_compute_times(at::Device device, std::size_t slots);

/// Times a computation, from here to the end of the scope. `times` may be null.
class Timed {
 public:
  Timed(ComputeTimes* times, std::size_t slot) : times_(times), slot_(slot) {
    if (times_ != nullptr) times_->begin(slot_);
  }
  ~Timed() {
    try {
      if (times_ != nullptr) times_->end(slot_);
    } catch (const std::exception&) {  // the call that waits for a failed device reports it
    }
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  ComputeTimes* times_;
  std::size_t slot_;
};

/// The sum of a step's losses. Only one thread uses it.
class StepLoss {
 public:
  virtual ~StepLoss() = default;
  virtual void clear() = 0;
  virtual void add(const at::Tensor& part) = 0;
  /// Returns the sum. Waits for what has been added, but not for later work of the device. If `add`
  /// was recorded, it returns the sum of the last replay, which must be over.
  virtual double value() = 0;
};
std::unique_ptr<StepLoss> make_step_loss(at::Device device);

/// Allocates host memory for `dims`. For copies to a CUDA device it is page-locked, so that copying
/// from it does not block.
at::Tensor host_memory(const std::vector<std::int64_t>& dims, at::ScalarType type,
                       at::Device device);

}  // namespace agpcs
