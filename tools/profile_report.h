// SPDX-License-Identifier: Apache-2.0
// What agpcs-profile prints at the end, and what --show says of a profile.
#pragma once

#include "cost_model/calibrate.h"
#include "ir/profile.h"
#include "tools/profile_device.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// A line for each model and number of samples.
std::string steps_report(const std::vector<ProfiledBatch>& steps);

/// Devices with their classes of operators and slowest operators, paths, collectives.
std::string profile_report(const Profile& profile);

/// How well each fit explains what was measured.
std::string fits_report(const std::vector<FitReport>& fits);

}  // namespace agpcs
