// SPDX-License-Identifier: Apache-2.0
// PassClock: divides the time of a whole pass of a stage among its operators.
#pragma once

#include "runtime/torch/executor.h"
#include "runtime/torch/ops/ops.h"

#include <agpcs/plan.h>

#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

namespace agpcs {

/// Returns the seconds that this thread has computed since some moment: on a CPU the thread's own
/// processor time, on CUDA the clock's time once the device has done all its work.
double busy_seconds_of(at::Device device);

/// What the executor says that it has computed (TorchExecutor::busy_seconds).
class BusyClock {
 public:
  virtual ~BusyClock() = default;
  virtual double read(bool ahead) = 0;
  /// Lets a device begin that waits for what has been launched since `read(true)`. It begins by
  /// itself after 200 ms, because the host may wait for it, or for room in its queue.
  virtual void let_go() {}
};
std::unique_ptr<BusyClock> make_busy_clock(at::Device device);

/// Marks on a device's time line: the thread's processor time, or CUDA's events.
class TimeMarks {
 public:
  virtual ~TimeMarks() = default;
  virtual void clear() = 0;
  virtual void mark() = 0;
  /// Returns the seconds between each mark and the next one. Waits for the device.
  virtual std::vector<double> intervals() = 0;
};
/// Throws if the device's events are not available.
std::unique_ptr<TimeMarks> make_time_marks(at::Device device);

/// Divides a pass without gaps: an operator's interval begins when that of the one before it ends.
/// What comes before the first operator counts for the first one, what comes after the last
/// operator for the last one. In a backward pass, an operator begins when the gradient of one of
/// its outputs is complete. An operator without a node of its own in autograd's graph (an Identity)
/// has no interval.
class PassClock {
 public:
  /// `busy`, whose device it lets go before it waits for it, must outlive this object.
  PassClock(OperatorObserver& observer, at::Device device, BusyClock& busy)
      : observer_(observer), busy_(busy), marks_(make_time_marks(device)) {}
  PassClock(const PassClock&) = delete;
  PassClock& operator=(const PassClock&) = delete;

  void start();
  /// Counts the time from now on for `op`; kNone: for no operator.
  void begin(OpId op);
  /// Arranges that `begin(op)` is called when `outputs`, which `op` has just made, get their
  /// gradient. The clock must outlive that backward pass.
  void await_backward(OpId op, const Tensors& outputs);
  /// Says that no operator of this pass has made `tensor`.
  void leave_out(const at::Tensor& tensor) { known_nodes_.insert(tensor.grad_fn().get()); }
  /// Ends the pass and reports it to the observer.
  void stop(Opcode pass);

 private:
  OperatorObserver& observer_;
  BusyClock& busy_;
  std::unique_ptr<TimeMarks> marks_;
  bool running_ = false;
  std::vector<OpId> ops_;  // in the order in which they began
  /// Nodes of autograd's graph that were seen since the last `start`.
  std::unordered_set<const void*> known_nodes_;
};

}  // namespace agpcs
