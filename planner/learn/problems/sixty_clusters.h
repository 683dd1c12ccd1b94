// SPDX-License-Identifier: Apache-2.0
// The cluster shapes of the sixty problems (generated_clusters.h says what each is).
#pragma once

#include "ir/base/rng.h"
#include "ir/cluster/cluster.h"

#include <string>

namespace agpcs {

Cluster pcie_trees(const std::string& name, Rng rng);
Cluster two_sites(const std::string& name, Rng rng);
Cluster island(const std::string& name, Rng rng);
Cluster workstations(const std::string& name, Rng rng);
Cluster two_kinds(const std::string& name, Rng rng);
Cluster ring(const std::string& name, Rng rng);

}  // namespace agpcs
