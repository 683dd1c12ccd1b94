// SPDX-License-Identifier: Apache-2.0
// KernelDevice: the figures of a device kind that the kernel model uses.
#pragma once

#include "cost_model/kernel/parameters.h"
#include "ir/cluster/cluster.h"

#include <optional>
#include <string_view>

namespace agpcs {

/// A device in fp32.
struct KernelDevice {
  double processors = 0;
  double peak = 0;       ///< FLOP/s
  double sustained = 0;  ///< FLOP/s that the board's power feeds; may exceed `peak`
  double bandwidth = 0;  ///< bytes/s that streams reach
};

/// Returns the energy of an operation on a chip of this process / on one of TSMC 16FF; absent for a
/// process that is not known.
std::optional<double> relative_energy(std::string_view process);

/// Returns the device if the kind has what the model needs: processors, board power, a known
/// process, a type of memory, a peak in fp32 and a bandwidth.
std::optional<KernelDevice> kernel_device(const DeviceKind& kind,
                                          const KernelParameters& parameters);

}  // namespace agpcs
