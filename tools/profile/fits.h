// SPDX-License-Identifier: Apache-2.0
// Fits cost models to a profile, for --show and for the end of measuring.
#pragma once

#include "cost_model/fit/calibrate.h"
#include "ir/cluster/cluster.h"
#include "ir/cluster/profile.h"

#include <agpcs/status.h>

namespace agpcs {

/// Fits everything of `cluster` that `profile` has measured: device kinds by name, links by the
/// paths that cross them, all-reduces. Errors: those of `calibrate`.
Result<Calibrated> fit_profile(Cluster cluster, const Profile& profile);

/// Does the same for a cluster of the profile's devices without a network.
Result<Calibrated> fit_devices(const Profile& profile);

}  // namespace agpcs
