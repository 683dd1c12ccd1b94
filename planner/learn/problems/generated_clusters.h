// SPDX-License-Identifier: Apache-2.0
// Generated clusters: random, mostly of mixed devices and networks, 2 to 32 devices.
#pragma once

#include "ir/base/rng.h"
#include "ir/cluster/cluster.h"
#include "planner/learn/problems/purpose.h"

#include <span>
#include <string>
#include <string_view>

namespace agpcs {

struct ClusterShape {
  std::string_view name;
  std::string_view what;
  Purpose purpose;  ///< the problems that use it
  Cluster (*make)(const std::string& name, Rng rng);
};
std::span<const ClusterShape> cluster_shapes();

/// Returns the shape of that name, or nullptr.
const ClusterShape* find_cluster_shape(std::string_view name);

/// Returns the purpose of a device kind. Needs: a generated cluster has devices of that kind.
Purpose purpose_of_device(std::string_view kind);

}  // namespace agpcs
