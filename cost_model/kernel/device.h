// SPDX-License-Identifier: Apache-2.0
// KernelDevice: the figures of a device kind that the kernel model uses.
#pragma once

#include "cost_model/kernel/parameters.h"
#include "ir/cluster/cluster.h"

#include <optional>
#include <string_view>

namespace agpcs {

/// A device in one precision.
struct KernelDevice {
  double processors = 0;
  double peak = 0;           ///< FLOP/s
  double sustained = 0;      ///< FLOP/s that the board's power feeds; may exceed `peak`
  double bandwidth = 0;      ///< bytes/s that streams reach
  double output_energy = 0;  ///< energy of an element of a product, in multiply-adds
  double element_bytes = 4;  ///< of a tensor of products
  bool tensor_cores = false;
};

/// Returns the energy of an operation on a chip of this process / on one of TSMC 16FF; absent for a
/// process that is not known.
std::optional<double> relative_energy(std::string_view process);

/// Returns the device if the kind has what the model needs: processors, board power, a known
/// process, a type of memory, a peak in this precision and a bandwidth. All precisions but fp32
/// are those of tensor cores.
std::optional<KernelDevice> kernel_device(const DeviceKind& kind,
                                          const KernelParameters& parameters, Precision precision);

}  // namespace agpcs
