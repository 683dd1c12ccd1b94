// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/port.h"

#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/network.h"
#include "frontend/cluster/yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace agpcs {
namespace {

constexpr std::int64_t kMostPorts = 64;     // of a host
constexpr std::int64_t kMostSharing = 256;  // devices of a host
constexpr double kDefaultHostLatency = 5e-6;
const std::vector<std::string> kLinkKinds = {"nvlink",   "xgmi", "pcie", "ib",
                                             "ethernet", "tcp",  "shm"};

// Takes a kind of link, with the figures of the network if the catalog has one of that name.
bool read_link_kind(const YAML::Node& node, Link& port, Diagnostics& diagnostics) {
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  const bool is_class = std::find(kLinkKinds.begin(), kLinkKinds.end(), text) != kLinkKinds.end();
  if (is_class || catalog().find_network(text) != nullptr) {
    take_network(text, port);
    return true;
  }
  std::vector<std::string> all = kLinkKinds;
  for (const std::string& name : catalog().network_names()) all.push_back(name);
  const std::string close = nearest(text, all);
  const bool of_catalog = !close.empty() && catalog().find_network(close) != nullptr;
  diagnostics.error(range_of(node), fmt::format("unknown link kind {}", describe(node)),
                    of_catalog ? fmt::format("did you mean '{}'?", close)
                               : did_you_mean(text, kLinkKinds, "kinds"));
  return false;
}

}  // namespace

ClusterProfiles::LinkItem read_port(const YAML::Node& node, const std::string& what, Link port,
                                    const std::vector<std::string>& more, ClusterProfiles& profiles,
                                    Diagnostics& diagnostics) {
  port.bandwidth = 0;
  if (node.IsScalar()) {
    const bool known = read_link_kind(node, port, diagnostics);
    return {port, std::nullopt, what, range_of(node), !known};
  }
  std::vector<std::string> keys{"kind", "bandwidth", "latency", "profile"};
  keys.insert(keys.end(), more.begin(), more.end());
  const YamlMap map(node, what, keys, diagnostics);
  if (!node.IsMap()) return {port, std::nullopt, what, map.where(), true};
  const YAML::Node* const kind = map.find("kind");
  const bool known = kind == nullptr || read_link_kind(*kind, port, diagnostics);
  ClusterProfiles::LinkItem item = profiles.read_link(map, port);
  item.like.bandwidth *= static_cast<double>(map.integer("count", 1, kMostPorts).value_or(1));
  item.failed = !known;
  return item;
}

std::optional<HostLink> read_host_link(const YAML::Node& node, const std::string& of,
                                       Diagnostics& diagnostics) {
  const std::string what = "host_link of " + of;
  Link link;
  link.kind = "pcie";
  link.latency = kDefaultHostLatency;
  double part = 1;  // of the bandwidth
  const auto take_efficiency = [&] {
    const NetworkKind* const network = catalog().find_network(link.kind);
    if (network != nullptr) link.bandwidth *= network->efficiency;
  };
  if (node.IsScalar()) {
    if (!read_link_kind(node, link, diagnostics)) return std::nullopt;
    take_efficiency();
  } else {
    const std::size_t errors = diagnostics.error_count();
    const YamlMap map(node, what, {"kind", "bandwidth", "latency", "shared_by"}, diagnostics);
    if (!node.IsMap()) return std::nullopt;
    const YAML::Node* const kind = map.find("kind");
    if (kind != nullptr && !read_link_kind(*kind, link, diagnostics)) return std::nullopt;
    const ClusterProfiles::LinkItem item = ClusterProfiles::read_figures(map, link);
    link = item.like;
    if (!item.own_bandwidth) take_efficiency();
    part = static_cast<double>(map.integer("shared_by", 1, kMostSharing).value_or(1));
    if (diagnostics.error_count() > errors) return std::nullopt;
  }
  if (link.bandwidth == 0) {
    diagnostics.error(range_of(node), fmt::format("{} has no 'bandwidth'", what),
                      "write {kind: pcie, bandwidth: 12GB/s}, or a network of the catalog, such as "
                      "pcie3x16");
    return std::nullopt;
  }
  return HostLink{link.kind, link.bandwidth / part, link.latency};
}

HostLink host_link_of(const AcceleratorKind& hardware) {
  for (const std::string& name : hardware.links) {
    const NetworkKind* const network = catalog().find_network(name);
    if (network == nullptr || network->kind != "pcie") continue;
    return {name, network->bandwidth * network->efficiency,
            network->latency < 0 ? kDefaultHostLatency : network->latency};
  }
  return {};
}

}  // namespace agpcs
