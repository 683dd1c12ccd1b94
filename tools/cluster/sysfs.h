// SPDX-License-Identifier: Apache-2.0
// What the kernel says of this host: AMD's GPUs, NICs and CPUs. `root` is the folder in which /sys
// lies; tests have one of their own.
#pragma once

#include "tools/cluster/hardware.h"

#include <string>

namespace agpcs {

/// Adds AMD's GPUs (/sys/class/kfd, /sys/class/drm), in the kernel's order.
void add_amd_gpus(FoundHost& host, const std::string& root = "");

/// Adds the NICs that are up: RDMA devices (/sys/class/infiniband), or else the fastest network
/// interface with a device behind it (/sys/class/net).
void add_nics(FoundHost& host, const std::string& root = "");

/// Returns the CPUs of this process: its cores and its memory within its control groups, the speed
/// of its vector units, and the bandwidth of memory, which is measured in a fraction of a second.
FoundCpus cpus_of_this_host();

}  // namespace agpcs
