// SPDX-License-Identifier: Apache-2.0
// Reads the generated topologies, such as `topology: bcube`, of the `network:` section of
// cluster.yaml.
#pragma once

#include "frontend/cluster/yaml.h"
#include "ir/cluster/topology.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns the families of ir/cluster/topology.h that a network of hosts can have: all except
/// `switch` and `dgx`. In a cluster file, `switch` means a switch that is never the bottleneck.
/// `dgx` describes hosts of several devices.
std::vector<std::string> network_families();

/// Returns the keys of a family: its parameters, its options and the figures of its links.
std::vector<std::string> network_keys(std::string_view family);

/// Builds the topology that `map`, a network section, asks for. Its servers are the `hosts` and
/// have their names. Parameter `servers` may be absent; it defaults to the number of hosts.
/// Errors (reported; the result is nullopt): a missing or absurd parameter, a number of servers
/// other than the number of hosts, a host with the name of a generated switch.
std::optional<Topology> read_generated_network(const YamlMap& map, std::string_view family,
                                               const std::vector<std::string>& hosts,
                                               Diagnostics& diagnostics);

}  // namespace agpcs
