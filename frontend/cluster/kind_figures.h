// SPDX-License-Identifier: Apache-2.0
// What device kinds of a cluster have from the catalog beyond the figures that keys of the file
// name.
#pragma once

#include "frontend/cluster/catalog/catalog.h"
#include "ir/cluster/cluster.h"

#include <vector>

namespace agpcs {

/// Adds to kinds of the catalog what the file does not say. A kind with devices on hosts that have
/// memory for plans gets the first of its links that is PCIe as the link to that memory. Messages
/// take computing time of a kind unless a profile measured how much: the part of the memory's
/// bandwidth that messages need is not there for operators. `hardware`: each kind's entry in the
/// catalog, or nullptr.
void add_catalog_figures(Cluster& cluster, const std::vector<const AcceleratorKind*>& hardware);

}  // namespace agpcs
