// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/network.h"

#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/generated_network.h"
#include "frontend/cluster/yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace agpcs {
namespace {

constexpr double kDefaultLatency = 20e-6;
constexpr int kMostUnreached = 5;  // most pairs of hosts that are reported

std::vector<std::string> topologies() {
  std::vector<std::string> names = {"switch", "links"};
  for (std::string& name : network_families()) names.push_back(std::move(name));
  return names;
}

class NetworkReader {
 public:
  NetworkReader(const std::vector<NicPorts>& nics, ClusterProfiles& profiles, Cluster& cluster,
                Diagnostics& diagnostics)
      : nics_(nics), profiles_(profiles), cluster_(cluster), diagnostics_(diagnostics) {
    for (const Host& host : cluster.hosts) nodes_.push_back(host.name);
  }

  void read(const YAML::Node& node) {
    cluster_.topology = "switch";
    where_ = range_of(node);
    if (node.IsNull()) return route_switch();
    if (!read_topology(node)) return;
    const std::vector<std::string> generated = network_families();
    if (std::find(generated.begin(), generated.end(), cluster_.topology) != generated.end()) {
      return read_generated(node);
    }
    const YamlMap map(node, "network", {"topology", "switches", "links", "profile"}, diagnostics_);
    if (cluster_.topology == "switch") {
      for (const char* key : {"switches", "links"}) {
        if (const YAML::Node* given = map.find(key)) {
          diagnostics_.error(range_of(*given), fmt::format("topology 'switch' has no '{}'", key),
                             "write topology: links");
        }
      }
      return route_switch();
    }
    if (const YAML::Node* switches = map.find("switches")) read_switches(*switches);
    if (const YAML::Node* links = map.require("links")) read_links(*links);
    if (diagnostics_.ok()) route_links();
  }

 private:
  bool read_topology(const YAML::Node& network) {
    if (!network.IsMap() || !network["topology"] || network["topology"].IsNull()) return true;
    const YAML::Node node = network["topology"];
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    if (text == "dgx") {
      diagnostics_.error(range_of(node), "topology 'dgx' is of devices in hosts",
                         "give each host its devices, an interconnect and a nic, and write "
                         "topology: switch");
      return false;
    }
    const std::vector<std::string> all = topologies();
    if (std::find(all.begin(), all.end(), text) == all.end()) {
      diagnostics_.error(range_of(node), fmt::format("unknown topology {}", describe(node)),
                         did_you_mean(text, all, "topologies"));
      return false;
    }
    cluster_.topology = text;
    return true;
  }

  void read_generated(const YAML::Node& node) {
    const std::string family = cluster_.topology;
    const YamlMap map(node, fmt::format("network '{}'", family), network_keys(family),
                      diagnostics_);
    ClusterProfiles::LinkItem item = ClusterProfiles::read_figures(map, cable_of(map));
    if (!diagnostics_.ok()) return;  // the hosts or the keys have errors
    const std::optional<Topology> topology =
        read_generated_network(map, family, nodes_, diagnostics_);
    if (!topology) return;
    cluster_.topology = topology->name;
    nodes_ = topology->node_names;
    const double bandwidth = item.like.bandwidth;
    for (const Topology::Link& link : topology->links) {
      item.like.bandwidth = bandwidth * static_cast<double>(link.capacity);
      add_link(item, link.from, link.to, "");
    }
    if (diagnostics_.ok()) route_links();
  }

  // Returns a link of the kind that `map` names, with the defaults of its figures.
  static Link cable_of(const YamlMap& map) {
    Link link;
    link.latency = kDefaultLatency;
    take_network(map.name("kind").value_or("ethernet"), link);
    return link;
  }

  void read_switches(const YAML::Node& node) {
    if (!node.IsSequence()) {
      return diagnostics_.error(range_of(node), fmt::format("'switches' must be a list of names, "
                                                            "is {}",
                                                            describe(node)));
    }
    for (const YAML::Node& name : node) {
      const std::string text = name.IsScalar() ? name.Scalar() : "";
      if (!is_name(text)) {
        diagnostics_.error(range_of(name),
                           fmt::format("a switch must be a name, is {}", describe(name)));
      } else if (std::find(nodes_.begin(), nodes_.end(), text) != nodes_.end()) {
        diagnostics_.error(range_of(name), fmt::format("'{}' names two hosts or switches", text));
      } else {
        nodes_.push_back(text);
      }
    }
  }

  void read_links(const YAML::Node& node) {
    if (!node.IsSequence()) {
      return diagnostics_.error(
          range_of(node), fmt::format("'links' must be a list, is {}", describe(node)),
          "write - {from: host, to: host, bandwidth: 100Gbit/s, latency: 5us}");
    }
    for (std::size_t i = 0; i < node.size(); ++i) read_link(node[i], i);
  }

  void read_link(const YAML::Node& node, std::size_t index) {
    const YamlMap map(node, fmt::format("link {}", index + 1),
                      {"from", "to", "kind", "bandwidth", "latency", "one_way", "profile"},
                      diagnostics_);
    if (map.entries().empty()) return;
    const std::optional<int> from = read_node(map, "from");
    const std::optional<int> to = read_node(map, "to");
    ClusterProfiles::LinkItem item = profiles_.read_link(map, cable_of(map));
    const std::optional<std::string> one_way =
        map.choice("one_way", "answer", "answers", {"true", "false"});
    if (!from || !to) return;
    if (*from == *to) {
      return diagnostics_.error(map.where(), fmt::format("{} joins '{}' to itself", map.what(),
                                                         nodes_[static_cast<std::size_t>(*from)]));
    }
    const std::string entry = item.given ? item.given->entry : "";
    add_link(item, *from, *to, entry);
    if (one_way.value_or("false") == "false") add_link(item, *to, *from, reversed(entry));
  }

  // Returns "b -> a" for "a -> b".
  static std::string reversed(const std::string& name) {
    const std::size_t arrow = name.find(" -> ");
    return arrow == std::string::npos ? name
                                      : name.substr(arrow + 4) + " -> " + name.substr(0, arrow);
  }

  std::optional<int> read_node(const YamlMap& map, const char* key) {
    const YAML::Node* const node = map.require(key);
    if (node == nullptr) return std::nullopt;
    const std::string text = node->IsScalar() ? node->Scalar() : "";
    const auto found = std::find(nodes_.begin(), nodes_.end(), text);
    if (found != nodes_.end()) return static_cast<int>(found - nodes_.begin());
    diagnostics_.error(range_of(*node), fmt::format("unknown host or switch {}", describe(*node)),
                       did_you_mean(text, nodes_, "hosts and switches"));
    return std::nullopt;
  }

  // Adds a link. `entry` is its name in the item's profile; if empty, the link's own name is taken.
  void add_link(ClusterProfiles::LinkItem& item, int from, int to, const std::string& entry) {
    const std::string name = fmt::format("{} -> {}", nodes_[static_cast<std::size_t>(from)],
                                         nodes_[static_cast<std::size_t>(to)]);
    const auto id = static_cast<LinkId>(cluster_.links.size());
    if (!edges_.emplace(std::pair(from, to), id).second) {
      return diagnostics_.error(item.where, fmt::format("link '{}' is there twice", name),
                                "a link is both ways unless one_way is true; add up bandwidths of "
                                "parallel cables");
    }
    profiles_.add_link(item, name, entry.empty() ? name : entry, item.like.latency);
  }

  std::size_t hosts() const { return cluster_.hosts.size(); }

  void route_switch() {
    cluster_.host_routes.assign(hosts() * hosts(), {});
    if (hosts() < 2) return;
    for (std::size_t a = 0; a < hosts(); ++a) {
      const bool said = a > 0 && nics_[a].out == -1 && nics_[a - 1].out == -1 &&
                        nics_[a].host.line == nics_[a - 1].host.line;  // of hosts alike
      if (nics_[a].out == -1 && !said) {
        diagnostics_.error(nics_[a].host,
                           fmt::format("host '{}' has no 'nic', but must reach other hosts "
                                       "through the switch",
                                       cluster_.hosts[a].name),
                           "add nic: {bandwidth: 25Gbit/s, latency: 15us}");
      }
      for (std::size_t b = 0; b < hosts(); ++b) {
        if (a != b) cluster_.host_routes[a * hosts() + b] = {nics_[a].out, nics_[b].in};
      }
    }
  }

  void route_links() {
    cluster_.host_routes.assign(hosts() * hosts(), {});
    std::vector<std::vector<std::pair<int, LinkId>>> neighbours(nodes_.size());
    for (const auto& [ends, link] : edges_) {  // in order of (from, to): neighbours are in id order
      neighbours[static_cast<std::size_t>(ends.first)].emplace_back(ends.second, link);
    }
    if (!check_ports()) return;
    for (std::size_t from = 0; from < hosts(); ++from) route_from(from, neighbours);
  }

  // Checks that every host is at an end of some link.
  bool check_ports() {
    std::vector<bool> joined(nodes_.size(), false);
    for (const auto& [ends, link] : edges_) {
      joined[static_cast<std::size_t>(ends.first)] = true;
      joined[static_cast<std::size_t>(ends.second)] = true;
    }
    bool all = true;
    for (std::size_t host = 0; host < hosts() && hosts() > 1; ++host) {
      if (joined[host]) continue;
      all = false;
      diagnostics_.error(where_, fmt::format("host '{}' has no link", nodes_[host]),
                         fmt::format("add - {{from: {}, to: ..., bandwidth: ...}}", nodes_[host]));
    }
    return all;
  }

  // Searches breadth first with neighbours in id order, so that the first path found is the wanted
  // one.
  void route_from(std::size_t from,
                  const std::vector<std::vector<std::pair<int, LinkId>>>& neighbours) {
    std::vector<std::pair<int, LinkId>> came_by(nodes_.size(), {-1, -1});
    std::deque<int> queue = {static_cast<int>(from)};
    while (!queue.empty()) {
      const int at = queue.front();
      queue.pop_front();
      for (const auto& [next, link] : neighbours[static_cast<std::size_t>(at)]) {
        auto& mark = came_by[static_cast<std::size_t>(next)];
        if (next == static_cast<int>(from) || mark.second != -1) continue;
        mark = {at, link};
        queue.push_back(next);
      }
    }
    for (std::size_t to = 0; to < hosts(); ++to) {
      if (to == from) continue;
      if (came_by[to].second == -1) return report_unreached(from, to);
      set_route(from, to, came_by);
    }
  }

  void report_unreached(std::size_t from, std::size_t to) {
    if (++unreached_ > kMostUnreached) return;
    diagnostics_.error(where_, fmt::format("no path of links from host '{}' to host '{}'",
                                           nodes_[from], nodes_[to]));
  }

  void set_route(std::size_t from, std::size_t to,
                 const std::vector<std::pair<int, LinkId>>& came_by) {
    std::vector<LinkId> route;
    if (nics_[to].in != -1) route.push_back(nics_[to].in);
    for (std::size_t at = to; at != from; at = static_cast<std::size_t>(came_by[at].first)) {
      route.push_back(came_by[at].second);
    }
    if (nics_[from].out != -1) route.push_back(nics_[from].out);
    std::reverse(route.begin(), route.end());
    cluster_.host_routes[from * hosts() + to] = std::move(route);
  }

  const std::vector<NicPorts>& nics_;
  ClusterProfiles& profiles_;
  Cluster& cluster_;
  Diagnostics& diagnostics_;
  SourceRange where_;
  int unreached_ = 0;
  std::vector<std::string> nodes_;               // hosts, then switches
  std::map<std::pair<int, int>, LinkId> edges_;  // by (from, to)
};

}  // namespace

void take_network(const std::string& kind, Link& link) {
  link.kind = kind;
  const NetworkKind* const network = catalog().find_network(kind);
  if (network == nullptr) return;
  link.bandwidth = network->bandwidth;
  if (network->latency >= 0) link.latency = network->latency;
}

void read_network(const YAML::Node& node, const std::vector<NicPorts>& nics,
                  ClusterProfiles& profiles, Cluster& cluster, Diagnostics& diagnostics) {
  NetworkReader(nics, profiles, cluster, diagnostics).read(node);
}

}  // namespace agpcs
