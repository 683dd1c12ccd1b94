// SPDX-License-Identifier: Apache-2.0
// The cluster shapes of tight problems, for training and for judging (generated_clusters.h says
// what each is). Their links are slow and unequal.
#pragma once

#include "ir/base/rng.h"
#include "ir/cluster/cluster.h"

#include <string>

namespace agpcs {

// For training.
Cluster stragglers(const std::string& name, Rng rng);
Cluster unequal_racks(const std::string& name, Rng rng);

// For judging.
Cluster motley_singles(const std::string& name, Rng rng);
Cluster host_line(const std::string& name, Rng rng);
Cluster bridged_islands(const std::string& name, Rng rng);

}  // namespace agpcs
