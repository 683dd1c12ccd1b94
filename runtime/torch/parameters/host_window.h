// SPDX-License-Identifier: Apache-2.0
// HostWindow: the memory of a device through which the optimizer's state in the host's memory is
// updated.
#pragma once

#include "runtime/torch/parameters/update.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace agpcs {

/// Returns zeros of fp32 in the memory of the host of `device`: pinned, if copies there run beside
/// kernels. It is not counted among what lives on a device, also where that is a CPU.
at::Tensor host_state(std::int64_t elements, at::Device device);

/// Holds three pieces at most (ir/strategy/offload.h): while one is updated, the next one may come
/// in and the one before it go out. On a CUDA device, copies in each direction have a stream of
/// their own; on a CPU, all takes turns.
class HostWindow {
 public:
  /// The window of an optimizer that remembers `tensors` tensors, 1 or 2, of buckets of which a
  /// rank owns `elements`, in this order.
  HostWindow(at::Device device, int tensors, const std::vector<std::int64_t>& elements);
  ~HostWindow();
  HostWindow(const HostWindow&) = delete;
  HostWindow& operator=(const HostWindow&) = delete;

  /// Begins an update of all buckets.
  void begin();
  /// Calls `update` for each piece of the next bucket, whose state is in the host's memory, with
  /// that of the piece in the device's. Needs: the buckets come in the order of the constructor.
  void for_each_piece(const UpdateTensors& of,
                      const std::function<void(const UpdateTensors&)>& update);
  /// Waits until all state is back in the host's memory.
  void end();

 private:
  struct Copies;
  struct Slot {
    at::Tensor first, second;
  };
  std::vector<Slot> slots_;
  std::size_t next_ = 0;  // piece of the update
  std::unique_ptr<Copies> copies_;
};

}  // namespace agpcs
