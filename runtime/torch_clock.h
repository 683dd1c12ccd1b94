// SPDX-License-Identifier: Apache-2.0
// PassClock: divides the time of a whole pass of a stage among its operators.
#pragma once

#include "runtime/torch_executor.h"
#include "runtime/torch_ops.h"

#include <agpcs/plan.h>

#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

namespace agpcs {

/// Seconds that this thread has computed since some moment: on a CPU the thread's own processor
/// time, on CUDA the clock's time once the device has done all its work.
double busy_seconds_of(at::Device device);

/// Marks on the time line of a device: the thread's processor time, or CUDA's events.
class TimeMarks {
 public:
  virtual ~TimeMarks() = default;
  virtual void clear() = 0;
  virtual void mark() = 0;
  /// Seconds between each mark and the next one. Waits for the device.
  virtual std::vector<double> intervals() = 0;
};
/// Throws where the device's events are not there.
std::unique_ptr<TimeMarks> make_time_marks(at::Device device);

/// Intervals are contiguous: an operator's begins when the one before it ends; what comes before
/// the first operator of a pass is the first one's, what comes after the last the last one's.
/// Backward, an operator begins when the gradient of one of its outputs is complete. One that has
/// no node of its own in autograd's graph (an Identity) takes no time of its own.
class PassClock {
 public:
  PassClock(OperatorObserver& observer, at::Device device)
      : observer_(observer), marks_(make_time_marks(device)) {}
  PassClock(const PassClock&) = delete;
  PassClock& operator=(const PassClock&) = delete;

  void start();
  /// From now on the time is `op`'s.
  void begin(OpId op);
  /// Has `begin(op)` called when `outputs`, which `op` has just made, get their gradient. The clock
  /// outlives that backward pass.
  void await_backward(OpId op, const Tensors& outputs);
  /// Tells the observer.
  void stop(Opcode pass);

 private:
  OperatorObserver& observer_;
  std::unique_ptr<TimeMarks> marks_;
  bool running_ = false;
  std::vector<OpId> ops_;                        // in the order in which they began
  std::unordered_set<const void*> known_nodes_;  // of autograd's graph, since the last `start`
};

}  // namespace agpcs
