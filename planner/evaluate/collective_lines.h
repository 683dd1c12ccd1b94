// SPDX-License-Identifier: Apache-2.0
// Seconds of a lone all-reduce over a device group, as straight lines over its bytes.
#pragma once

#include "ir/cluster/cluster.h"
#include "planner/evaluate/bucket_schedule.h"

#include <vector>

namespace agpcs {

/// Returns lines of which the least one, at any number of bytes, is about the seconds of the
/// fastest algorithm. An algorithm whose time is a latency plus its bytes at one rate has one line,
/// which is exact unless the bytes do not divide by the devices. An algorithm that sends fewer
/// pieces of a small buffer has the lines through a few sizes. For fewer than two devices there is
/// one line, of no time. Cost: four sizes of each algorithm in the link model.
std::vector<CostLine> collective_lines(const Cluster& cluster,
                                       const std::vector<DeviceId>& devices);

}  // namespace agpcs
