// SPDX-License-Identifier: Apache-2.0
// NVIDIA's GPUs as the driver's library has them, which is loaded where it is there.
#pragma once

#include "tools/cluster/hardware.h"

#include <string>

namespace agpcs {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

/// Adds the GPUs of this host. Without the library there are none; where it is there but does not
/// work, `host.notes` says why.
void add_nvidia_gpus(FoundHost& host, const std::string& library = kNvmlLibrary);

}  // namespace agpcs
