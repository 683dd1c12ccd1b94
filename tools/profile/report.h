// SPDX-License-Identifier: Apache-2.0
// Prints what agpcs-profile reports at the end and what --show shows of a profile.
#pragma once

#include "cost_model/fit/calibrate.h"
#include "ir/cluster/cluster.h"
#include "ir/cluster/profile.h"
#include "tools/profile/device.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// Returns a line for each model and number of samples.
std::string steps_report(const std::vector<ProfiledBatch>& steps);

/// Lists devices with their classes of operators and slowest operators, paths, and collectives.
std::string profile_report(const Profile& profile);

/// Says what the corrections of quick profiles are expected to be wrong by. `cluster` has the
/// figures of the devices' kinds, where it has such kinds.
std::string expected_errors_report(const Profile& profile, const Cluster& cluster);

/// Shows how well each fit explains the measurements.
std::string fits_report(const std::vector<FitReport>& fits);

}  // namespace agpcs
