// SPDX-License-Identifier: Apache-2.0
// Which hosts of a cluster are alike.
#pragma once

#include "ir/cluster/cluster.h"

#include <vector>

namespace agpcs {

/// Returns the class of each host, which is the number of its first host. Hosts of one class can
/// change places, and no step takes more or less time: they have equal devices, ports and NICs, and
/// nothing but NICs is between hosts. Where there is more, each host is a class of its own.
/// Cost: O(hosts^2 + devices log).
std::vector<int> alike_hosts(const Cluster& cluster);

}  // namespace agpcs
