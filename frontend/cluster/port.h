// SPDX-License-Identifier: Apache-2.0
// Reads the links of a host in cluster.yaml: its interconnect and its NIC.
#pragma once

#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/profile.h"
#include "ir/base/diagnostics.h"
#include "ir/cluster/cluster.h"

#include <yaml-cpp/yaml.h>

#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// Reads a network's name, or a map with `more` keys than those of every port. Of a `count` of
/// ports, the host has the bandwidth of all. `port`: what the file leaves out. `what`:
/// "nic of host 'a'".
ClusterProfiles::LinkItem read_port(const YAML::Node& node, const std::string& what, Link port,
                                    const std::vector<std::string>& more, ClusterProfiles& profiles,
                                    Diagnostics& diagnostics);

/// Reads the link of a device kind to its host's memory: a network's name, or a map. Of a link that
/// `shared_by` devices use at a time, each has that part of the bandwidth. `of`: "device kind
/// 'v100'". Errors (reported; the result is nullopt): no bandwidth, an unknown kind of link.
std::optional<HostLink> read_host_link(const YAML::Node& node, const std::string& of,
                                       Diagnostics& diagnostics);

/// Returns the link of an accelerator of the catalog to its host's memory: the first of its links
/// that is PCIe. None if it has none.
HostLink host_link_of(const AcceleratorKind& hardware);

}  // namespace agpcs
