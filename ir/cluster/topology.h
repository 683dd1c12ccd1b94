// SPDX-License-Identifier: Apache-2.0
// Topology: servers, switches and the directed links between them, on which all-reduces are
// scheduled (model AR-1, docs/design/all_reduce.md), and generators of the usual data-centre
// networks.
#pragma once

#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// A network of numbered nodes: servers first, then switches. A cable is two links with successive
/// numbers, one each way; links that lead one way only are allowed.
struct Topology {
  struct Link {
    int from = 0, to = 0;  ///< nodes
    std::int64_t capacity =
        1;  ///< chunks a round (or sub-chunks a sub-round) that the link can carry
  };
  std::string name;  ///< the specification it was made from: "bcube:4,1"
  int servers = 0, switches = 0;
  std::vector<std::string>
      node_names;  ///< by node: "s0", "s1", ..., "w0", ...; or a cluster's devices
  std::vector<Link> links;
  /// routes[u * servers + v] has, in order, the links of the only path that a message from server u
  /// to v may take; clusters, whose routing is given, set it. If `routes` is empty, a message may
  /// take any path whose inner nodes are switches.
  std::vector<std::vector<int>> routes;

  int nodes() const { return servers + switches; }
  bool is_server(int node) const { return node < servers; }
  const std::string& name_of(int node) const { return node_names[static_cast<std::size_t>(node)]; }
};

/// The most servers that a topology may have.
inline constexpr int kMaxServers = 65'536;

/// A generator of topologies: its name, its parameters and what it makes.
struct TopologyFamily {
  std::string_view name;        ///< "bcube"
  std::string_view parameters;  ///< "n,k"
  std::string_view help;
  int least, most;  ///< number of parameters
  Result<Topology> (*make)(const std::vector<std::int64_t>& parameters, std::uint64_t seed);
};
/// Returns the families: bcube, dcell, jellyfish, fat_tree, torus, switch, dgx.
const std::vector<TopologyFamily>& topology_families();

/// Makes a topology from "family:parameters" with options: "bcube:4,1", "jellyfish:20,4,seed=3",
/// "jellyfish:20,4,links=39", "dcell:4,1,fail=0.05,seed=2". `fail` removes that fraction of the
/// cables, drawn by the seed, so that all servers stay connected. Errors: an unknown family or
/// option (did you mean); parameters that are missing, too many, not positive, or that make more
/// than kMaxServers servers.
Result<Topology> make_topology(std::string_view spec);

/// Removes `fraction` of the cables (rounded, at least one if `fraction` is above 0), drawn by
/// `seed`, such that every server can still reach every other one as `verify_topology` asks. It
/// skips a cable that cannot be spared. Errors: fewer cables than asked for can be spared.
Result<Topology> without_cables(Topology topology, double fraction, std::uint64_t seed);

/// Returns the topology with all links reversed; links keep their numbers.
Topology reversed(const Topology& topology);

/// Checks what schedules rely on. Errors (kInvalidInput) name the node or the link: fewer than two
/// servers; a link from a node to itself, to a node that does not exist, or with a capacity that is
/// not positive; a server without a link out or in; a server that cannot reach another one by hops
/// from server to server over switches; a route that is not a path from its server to the other.
Status verify_topology(const Topology& topology);

}  // namespace agpcs
