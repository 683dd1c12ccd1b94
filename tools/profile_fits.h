// SPDX-License-Identifier: Apache-2.0
// What the fits of a cluster say of a profile, for --show and for the end of measuring.
#pragma once

#include "cost_model/calibrate.h"
#include "ir/cluster.h"
#include "ir/profile.h"

#include <agpcs/status.h>

namespace agpcs {

/// Everything of `cluster` that `profile` has measured is fitted: device kinds by name, links by
/// the paths that cross them, all-reduces. Errors: of `calibrate`.
Result<Calibrated> fit_profile(Cluster cluster, const Profile& profile);

/// The same for a cluster of the profile's devices without network.
Result<Calibrated> fit_devices(const Profile& profile);

}  // namespace agpcs
