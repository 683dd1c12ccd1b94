// SPDX-License-Identifier: Apache-2.0
// `topology: bcube` and its like in the `network:` section of cluster.yaml.
#pragma once

#include "frontend/cluster_yaml.h"
#include "ir/topology.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// The families of ir/topology.h that a network of hosts can have: all but `switch`, which in a
/// cluster file is a switch that is never the bottleneck, and `dgx`, which is hosts of several
/// devices.
std::vector<std::string> network_families();

/// The keys of a family: its parameters and options, and figures of its links.
std::vector<std::string> network_keys(std::string_view family);

/// The topology that `map`, a network section, asks for, its servers being the `hosts`, whose names
/// they get. Parameter `servers` may be absent: it is the number of hosts. Nothing after reporting
/// what is wrong: parameters that are missing or absurd, another number of servers than hosts, a
/// host that has the name of a generated switch.
std::optional<Topology> read_generated_network(const YamlMap& map, std::string_view family,
                                               const std::vector<std::string>& hosts,
                                               Diagnostics& diagnostics);

}  // namespace agpcs
