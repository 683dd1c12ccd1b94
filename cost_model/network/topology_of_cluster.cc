// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/topology_of_cluster.h"

#include "ir/base/check.h"
#include "ir/base/disjoint_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

constexpr int kMostUnits = 8;  // units of the slowest link
constexpr std::string_view kArrow = " -> ", kNicOut = " nic out", kNicIn = " nic in";

/// Returns "x" for the name "x nic out" and `end` " nic out"; empty for another name.
std::string_view before(std::string_view name, std::string_view end) {
  const bool ends = name.size() > end.size() && name.substr(name.size() - end.size()) == end;
  return ends ? name.substr(0, name.size() - end.size()) : "";
}

/// Returns "x" and "y" for the name "x -> y"; empty for another name.
std::pair<std::string_view, std::string_view> ends_of(std::string_view name) {
  const std::size_t arrow = name.find(kArrow);
  if (arrow == std::string_view::npos) return {};
  return {name.substr(0, arrow), name.substr(arrow + kArrow.size())};
}

/// Finds the nodes of a cluster's network from the routes between the devices.
class NodeFinder {
 public:
  NodeFinder(const Cluster& cluster, std::span<const DeviceId> devices)
      : cluster_(cluster),
        devices_(devices),
        places_(devices.size() + 2 * cluster.links.size()),
        used_(cluster.links.size(), false) {}

  ClusterTopology find() {
    follow_routes();
    join_ports();
    join_named();
    ClusterTopology result;
    number_nodes(result);
    set_capacities(result);
    set_routes(result);
    name_nodes(result.topology);
    return result;
  }

 private:
  // Places are numbered: servers, then the tail and the head of every link.
  std::size_t tail(LinkId link) const {
    return devices_.size() + 2 * static_cast<std::size_t>(link);
  }
  std::size_t head(LinkId link) const { return tail(link) + 1; }
  const Link& link_of(LinkId id) const { return cluster_.links[static_cast<std::size_t>(id)]; }
  bool used(LinkId id) const { return used_[static_cast<std::size_t>(id)]; }

  void follow_routes() {
    for (std::size_t u = 0; u < devices_.size(); ++u) {
      for (std::size_t v = 0; v < devices_.size(); ++v) {
        if (u == v) continue;
        std::size_t at = u;
        for (const LinkId link : cluster_.route(devices_[u], devices_[v])) {
          places_.join(at, tail(link));
          at = head(link);
          used_[static_cast<std::size_t>(link)] = true;
        }
        places_.join(at, v);
      }
    }
  }

  void join_ports() {
    for (const DeviceId id : devices_) {
      const Device& device = cluster_.devices[static_cast<std::size_t>(id)];
      places_.join(head(device.out), tail(device.in));
    }
  }

  void join_named() {
    std::map<std::string_view, std::size_t> cables, nics;  // a place, by name
    const auto join = [&](auto& named, std::string_view name, std::size_t place) {
      if (!name.empty()) places_.join(named.emplace(name, place).first->second, place);
    };
    for (LinkId id = 0; id < static_cast<LinkId>(cluster_.links.size()); ++id) {
      if (!used(id)) continue;
      const auto [from, to] = ends_of(link_of(id).name);
      join(cables, from, tail(id));
      join(cables, to, head(id));
      join(nics, before(link_of(id).name, kNicOut), head(id));
      join(nics, before(link_of(id).name, kNicIn), tail(id));
    }
  }

  int node_of(std::size_t place) {
    int& node = nodes_.emplace(places_.find(place), static_cast<int>(nodes_.size())).first->second;
    return node;
  }

  void number_nodes(ClusterTopology& result) {
    Topology& topology = result.topology;
    topology.servers = static_cast<int>(devices_.size());
    for (std::size_t s = 0; s < devices_.size(); ++s) {
      AGPCS_CHECK(node_of(s) == static_cast<int>(s), "devices {} and {} of cluster '{}' are one", s,
                  node_of(s), cluster_.name);
    }
    for (LinkId id = 0; id < static_cast<LinkId>(cluster_.links.size()); ++id) {
      if (!used(id)) continue;
      const int from = node_of(tail(id));
      topology.links.push_back({from, node_of(head(id)), 1});
      result.links.push_back(id);
    }
    topology.switches = static_cast<int>(nodes_.size()) - topology.servers;
    topology.name = cluster_.name;
  }

  void set_capacities(ClusterTopology& result) const {
    std::vector<double> bandwidths;
    for (const LinkId id : result.links) bandwidths.push_back(link_of(id).bandwidth);
    const std::vector<std::int64_t> units = units_of(bandwidths, result.topology.servers);
    for (std::size_t i = 0; i < units.size(); ++i) result.topology.links[i].capacity = units[i];
  }

  void set_routes(ClusterTopology& result) const {
    std::vector<int> number(cluster_.links.size(), -1);
    for (std::size_t i = 0; i < result.links.size(); ++i) {
      number[static_cast<std::size_t>(result.links[i])] = static_cast<int>(i);
    }
    result.topology.routes.reserve(devices_.size() * devices_.size());
    for (const DeviceId from : devices_) {
      for (const DeviceId to : devices_) {
        std::vector<int> route = cluster_.route(from, to);
        for (int& link : route) link = number[static_cast<std::size_t>(link)];
        result.topology.routes.push_back(std::move(route));
      }
    }
  }

  void name_nodes(Topology& topology) {
    topology.node_names.assign(static_cast<std::size_t>(topology.nodes()), "");
    for (std::size_t s = 0; s < devices_.size(); ++s) {
      give(topology, static_cast<int>(s), cluster_.device_name(devices_[s]));
      const Device& device = cluster_.devices[static_cast<std::size_t>(devices_[s])];
      give(topology, node_of(head(device.out)),
           cluster_.hosts[static_cast<std::size_t>(device.host)].name);
    }
    std::map<int, std::set<std::string>> plugged;  // names of NICs, by node
    for (LinkId id = 0; id < static_cast<LinkId>(cluster_.links.size()); ++id) {
      if (!used(id)) continue;
      const auto [from, to] = ends_of(link_of(id).name);
      if (!from.empty()) {
        give(topology, node_of(tail(id)), std::string(from));
        give(topology, node_of(head(id)), std::string(to));
      }
      const std::string_view out = before(link_of(id).name, kNicOut);
      if (!out.empty()) plugged[node_of(head(id))].insert(std::string(out));
    }
    for (const auto& [node, hosts] : plugged) {
      give(topology, node, hosts.size() == 1 ? *hosts.begin() + ":nic" : "switch");
    }
    for (int n = 0; n < topology.nodes(); ++n) {
      give(topology, n, fmt::format("w{}", n - topology.servers));
    }
  }

  /// Names a node that has no name yet. If another node has that name, the node becomes "NAME:nic"
  /// or "NAME:2".
  void give(Topology& topology, int node, const std::string& name) {
    std::string& own = topology.node_names[static_cast<std::size_t>(node)];
    if (!own.empty()) return;
    own = name;
    if (names_.insert(own).second) return;
    own = name + ":nic";
    for (int i = 2; !names_.insert(own).second; ++i) own = fmt::format("{}:{}", name, i);
  }

  const Cluster& cluster_;
  std::span<const DeviceId> devices_;
  DisjointSets<std::size_t> places_;  // each set is one node
  std::vector<bool> used_;            // by link
  std::map<std::size_t, int> nodes_;  // by the number of its set of places
  std::set<std::string> names_;       // names in use
};

double loss_of(std::span<const double> bandwidths, double unit) {
  double loss = 0;
  for (const double bandwidth : bandwidths) {
    loss = std::max(loss, 1 - std::floor(bandwidth / unit * (1 + 1e-9)) * unit / bandwidth);
  }
  return loss;
}

}  // namespace

ClusterTopology topology_of(const Cluster& cluster, std::span<const DeviceId> devices) {
  AGPCS_CHECK(devices.size() >= 2, "a topology of {} devices", devices.size());
  return NodeFinder(cluster, devices).find();
}

std::vector<Link> links_of(const Cluster& cluster, const ClusterTopology& topology) {
  std::vector<Link> links;
  links.reserve(topology.links.size());
  for (const LinkId id : topology.links) {
    links.push_back(cluster.links[static_cast<std::size_t>(id)]);
  }
  return links;
}

std::vector<std::int64_t> units_of(std::span<const double> bandwidths, int servers) {
  if (bandwidths.empty()) return {};
  const double slowest = *std::min_element(bandwidths.begin(), bandwidths.end());
  double least = std::numeric_limits<double>::infinity();
  double best = 1;
  for (int m = 1; m <= kMostUnits; ++m) {
    const double cost = loss_of(bandwidths, slowest / m) + (m - 1.0) / (servers - 1.0);
    if (cost < least - 1e-9) {
      least = cost;
      best = m;
    }
  }
  std::vector<std::int64_t> units;
  for (const double bandwidth : bandwidths) {
    const double exact = bandwidth / slowest * best * (1 + 1e-9);
    units.push_back(static_cast<std::int64_t>(std::min(std::floor(exact), 1e15)));
  }
  return units;
}

}  // namespace agpcs
