// SPDX-License-Identifier: Apache-2.0
// Putting together what the ranks of a profiling job have measured.
#pragma once

#include "ir/profile.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <string>
#include <vector>

namespace agpcs {

/// The largest of what all ranks give, on all ranks. All call it with the same `name`, a new one
/// each time.
Result<double> largest_of(Bootstrap& bootstrap, const std::string& name, double mine,
                          std::chrono::milliseconds limit);

/// On rank 0 all ranks' devices, by rank; elsewhere nothing. All call it.
Result<std::vector<DeviceProfile>> gather(const DeviceProfile& mine, Transport& transport,
                                          std::chrono::milliseconds limit);

/// A profile of `devices` where those of one kind are one entry: neighbours are merged in pairs,
/// and the pairs again, so that each counts about the same. Errors: of `merge_profiles`.
Result<Profile> merge_devices(std::vector<DeviceProfile> devices);

}  // namespace agpcs
