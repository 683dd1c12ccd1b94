// SPDX-License-Identifier: Apache-2.0
// Tells how fast a device is now, compared with the first time it was asked.
#pragma once

#include "runtime/torch/ops/ops.h"

#include <cstdint>

namespace agpcs {

class DeviceProbe {
 public:
  /// Multiplies matrices on `device`. The first call finds out how many products take `seconds` of
  /// the device (on a CPU, of the thread's processor time: a quota does not make it compute less),
  /// and returns 0. Later calls return the seconds by the clock that as many take. 0: it failed.
  double run(double seconds, at::Device device);

 private:
  std::int64_t products_ = 0;  // 0: not known yet
};

}  // namespace agpcs
