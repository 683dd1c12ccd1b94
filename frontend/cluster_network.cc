// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster_network.h"

#include "frontend/cluster_yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace agpcs {
namespace {

// Known by name, but not read yet: saying so is better than "unknown".
const std::vector<std::string> kLater = {"bcube", "dcell", "jellyfish", "fat_tree", "torus"};
const std::vector<std::string> kSupported = {"switch", "links"};

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
    const YamlMap map(node, "network", {"topology", "switches", "links", "profile"}, diagnostics_);
    if (!read_topology(map)) return;
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
  bool read_topology(const YamlMap& map) {
    const YAML::Node* const node = map.find("topology");
    if (node == nullptr) return true;
    const std::string text = node->IsScalar() ? node->Scalar() : "";
    if (std::find(kLater.begin(), kLater.end(), text) != kLater.end()) {
      diagnostics_.error(range_of(*node), fmt::format("topology '{}' is not supported yet", text),
                         "supported: switch, links; write this network as an explicit list of "
                         "links (docs/cluster_yaml.md)");
      return false;
    }
    const std::optional<std::string> topology =
        map.choice("topology", "topology", "topologies", kSupported);
    cluster_.topology = topology.value_or("");
    return topology.has_value();
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
    Link link;
    link.kind = map.name("kind").value_or("ethernet");
    link.latency = 20e-6;
    ClusterProfiles::LinkItem item = profiles_.read_link(map, link);
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

  // "b -> a" of "a -> b".
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

  // `entry`: its name in the item's profile; empty: its own.
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
      if (nics_[a].out == -1) {
        diagnostics_.error(where_,
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
    for (const auto& [ends, link] : edges_) {  // by from, then to: neighbours lie in id order
      neighbours[static_cast<std::size_t>(ends.first)].emplace_back(ends.second, link);
    }
    for (std::size_t from = 0; from < hosts(); ++from) route_from(from, neighbours);
  }

  // Breadth first, neighbours in id order: the first path found is the one that is wanted.
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
      if (to != from) set_route(from, to, came_by);
    }
  }

  void set_route(std::size_t from, std::size_t to,
                 const std::vector<std::pair<int, LinkId>>& came_by) {
    if (came_by[to].second == -1) {
      return diagnostics_.error(where_, fmt::format("no path of links from host '{}' to host '{}'",
                                                    nodes_[from], nodes_[to]));
    }
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
  std::vector<std::string> nodes_;               // hosts, then switches
  std::map<std::pair<int, int>, LinkId> edges_;  // by from, to
};

}  // namespace

void read_network(const YAML::Node& node, const std::vector<NicPorts>& nics,
                  ClusterProfiles& profiles, Cluster& cluster, Diagnostics& diagnostics) {
  NetworkReader(nics, profiles, cluster, diagnostics).read(node);
}

}  // namespace agpcs
