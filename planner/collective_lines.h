// SPDX-License-Identifier: Apache-2.0
// Seconds of a lone all-reduce over a device group, as straight lines over its bytes.
#pragma once

#include "ir/cluster.h"
#include "planner/bucket_schedule.h"

#include <vector>

namespace agpcs {

/// The least of them is what the fastest algorithm takes, about: an algorithm whose time is its
/// latency and its bytes at one rate has one line (exact but for bytes that do not divide by the
/// devices); one that also sends fewer pieces when small has the lines through a few sizes. Of
/// fewer than two devices: no time.
/// Cost: that of the link model for four sizes of each algorithm.
std::vector<CostLine> collective_lines(const Cluster& cluster,
                                       const std::vector<DeviceId>& devices);

}  // namespace agpcs
