// SPDX-License-Identifier: Apache-2.0
// Combines what the ranks of a profiling job have measured.
#pragma once

#include "ir/cluster/profile.h"

#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <string>
#include <vector>

namespace agpcs {

/// Returns all ranks' devices on rank 0, by rank, and an empty list elsewhere. All ranks call it.
Result<std::vector<DeviceProfile>> gather(const DeviceProfile& mine, Transport& transport,
                                          std::chrono::milliseconds limit);

/// Returns a profile of `devices` in which the devices of one kind are one entry. It merges
/// neighbours in pairs, then the pairs, and so on, so that each device has about the same weight.
/// Errors: those of `merge_profiles`.
Result<Profile> merge_devices(std::vector<DeviceProfile> devices);

}  // namespace agpcs
