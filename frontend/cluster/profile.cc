// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/profile.h"

#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace agpcs {
namespace {

// Returns "did you mean ...", or a note that there is nothing to choose from.
std::string choices(std::string_view name, const std::vector<std::string>& all,
                    std::string_view plural) {
  return all.empty() ? fmt::format("it has no {}", plural)
                     : did_you_mean(name, all, fmt::format("its {}", plural));
}

std::vector<std::string> names_of(const std::vector<DeviceProfile>& devices) {
  std::vector<std::string> names;
  for (const DeviceProfile& device : devices) names.push_back(device.name);
  return names;
}

std::map<std::string, double> rates_of(const std::vector<MeasuredPath>& paths) {
  std::map<std::string, double> rates;
  for (const MeasuredPath& path : paths) {
    double best = 0;
    for (const MeasuredMessages& point : path.points) {
      best = std::max(best, static_cast<double>(point.bytes) / point.time.seconds);
    }
    for (const std::string& link : path.links) rates[link] = std::max(rates[link], best);
  }
  return rates;
}

}  // namespace

ClusterProfiles::ClusterProfiles(const ReadProfile& read, const std::string& cluster_file,
                                 Cluster& cluster, Diagnostics& diagnostics)
    : read_(read),
      folder_(std::filesystem::path(cluster_file).parent_path().string()),
      cluster_(cluster),
      diagnostics_(diagnostics) {}

int ClusterProfiles::load(const std::string& file, const SourceRange& where) {
  const std::string path = (std::filesystem::path(folder_) / file).string();
  const auto [known, added] = loaded_.emplace(path, -1);
  if (!added) return known->second;
  Result<Profile> profile = read_(path);
  if (!profile.ok()) {
    diagnostics_.error(where, fmt::format("profile '{}' cannot be used", file));
    diagnostics_.include(profile.status());
    return -1;
  }
  known->second = static_cast<int>(cluster_.profiles.size());
  links_.push_back(rates_of(profile->paths));
  cluster_.profiles.push_back(std::move(*profile));
  return known->second;
}

ClusterProfiles::Given ClusterProfiles::read(const YAML::Node& node) {
  Given given;
  given.where = range_of(node);
  if (!node.IsScalar() || node.Scalar().empty()) {
    diagnostics_.error(given.where, fmt::format("'profile' must be a file, is {}", describe(node)),
                       "as in profile: lab.yaml, or lab.yaml#v100 for its entry 'v100'");
    return given;
  }
  const std::size_t mark = std::min(node.Scalar().rfind('#'), node.Scalar().size());
  given.file = node.Scalar().substr(0, mark);
  given.entry = node.Scalar().substr(std::min(mark + 1, node.Scalar().size()));
  given.index = load(given.file, given.where);
  return given;
}

void ClusterProfiles::read_defaults(const YAML::Node& node) {
  const auto read_one = [&](const YAML::Node& file) {
    Given given = read(file);
    if (!given.entry.empty()) {
      diagnostics_.error(given.where, "the cluster's profile is a whole file, without '#'",
                         "an entry is chosen where it is used: at a device kind or a link");
    } else if (given.index != -1) {
      defaults_.push_back(std::move(given));
    }
  };
  if (!node.IsSequence()) return read_one(node);
  for (const YAML::Node& file : node) read_one(file);
}

void ClusterProfiles::read_network(const YAML::Node& node) {
  Given given = read(node);
  if (given.index == -1) return;
  const auto index = static_cast<std::size_t>(given.index);
  if (!given.entry.empty()) {
    diagnostics_.error(given.where, "the network's profile is a whole file, without '#'",
                       "an entry is chosen where it is used: at a nic or a link");
  } else if (links_[index].empty() && cluster_.profiles[index].collectives.empty()) {
    diagnostics_.error(given.where,
                       fmt::format("profile '{}' has no paths and no collectives", given.file),
                       "measure the network with agpcs-profile --cluster");
  } else {
    network_ = std::move(given);
  }
}

const DeviceProfile* ClusterProfiles::refer(const std::optional<Given>& given, DeviceKind& kind) {
  std::vector<Given> candidates = defaults_;
  if (given) candidates = {*given};
  const std::string& entry = given && !given->entry.empty() ? given->entry : kind.name;
  // Measured operators come before a quick profile.
  std::stable_partition(candidates.begin(), candidates.end(), [&](const Given& each) {
    if (each.index == -1) return true;
    const Profile& profile = cluster_.profiles[static_cast<std::size_t>(each.index)];
    const DeviceProfile* const device = profile.find_device(entry);
    return device == nullptr || device->operators.empty();
  });
  for (auto at = candidates.rbegin(); at != candidates.rend(); ++at) {
    if (at->index == -1) return nullptr;
    const Profile& profile = cluster_.profiles[static_cast<std::size_t>(at->index)];
    const DeviceProfile* const device = profile.find_device(entry);
    if (device != nullptr) {
      kind.profile = {at->index, entry};
      kind.message_overhead = device->message_overhead;
      kind.message_compute = device->message_compute;
      kind.overlap = device->overlap;
      return device;
    }
    if (!given) continue;
    diagnostics_.error(given->where,
                       fmt::format("profile '{}' has no device '{}'", given->file, entry),
                       choices(entry, names_of(profile.devices), "devices"));
  }
  return nullptr;
}

ClusterProfiles::LinkItem ClusterProfiles::read_figures(const YamlMap& map, const Link& like) {
  LinkItem item = {like, std::nullopt, map.what(), map.where()};
  item.own_bandwidth = map.find("bandwidth") != nullptr;
  item.own_latency = map.find("latency") != nullptr;
  item.like.bandwidth = map.quantity("bandwidth", QuantityKind::kBytesPerSecond, Sign::kPositive)
                            .value_or(map.find("bandwidth") == nullptr ? like.bandwidth : 1);
  item.like.latency =
      map.quantity("latency", QuantityKind::kSeconds, Sign::kNotNegative).value_or(like.latency);
  return item;
}

ClusterProfiles::LinkItem ClusterProfiles::read_link(const YamlMap& map, const Link& like) {
  LinkItem item = read_figures(map, like);
  if (const YAML::Node* profile = map.find("profile")) item.given = read(*profile);
  return item;
}

LinkId ClusterProfiles::add_link(LinkItem& item, const std::string& name, const std::string& entry,
                                 double latency) {
  Link link = item.like;
  link.name = name;
  link.latency = latency;
  refer(item, entry, link);
  if (!link.profile.given()) take_costs(item, link);
  if (link.bandwidth == 0 && !item.failed) {
    lacks(item.what, item.where, "bandwidth", fmt::format("link '{}'", name));
    item.failed = true;
  }
  cluster_.links.push_back(std::move(link));
  return static_cast<LinkId>(cluster_.links.size()) - 1;
}

void ClusterProfiles::take_costs(const LinkItem& item, Link& link) {
  const NetworkKind* const network = catalog().find_network(link.kind);
  if (network == nullptr) return;
  if (!item.own_bandwidth) link.bandwidth *= network->efficiency;
  if (!item.own_latency && !network->protocols.empty()) {
    link.protocols = protocols_of(network->protocols);
  }
}

int ClusterProfiles::protocols_of(const std::string& name) {
  const auto known = std::find_if(cluster_.protocols.begin(), cluster_.protocols.end(),
                                  [&](const auto& one) { return one.name == name; });
  const auto index = static_cast<int>(known - cluster_.protocols.begin());
  if (known != cluster_.protocols.end()) return index;
  const ProtocolKind& kind = *catalog().find_protocols(name);
  const double message = kind.simple_latency;
  NetworkProtocols protocols;
  protocols.name = name;
  protocols.of = {{{kind.launch + kind.ll_start, kind.ll_latency / message, kind.ll_rate},
                   {kind.launch + kind.ll128_start, kind.ll128_latency / message, kind.ll128_rate},
                   {kind.launch + kind.simple_start, 1, 1}}};
  protocols.step = kind.step;
  protocols.expected = kind.ll128_expected;
  cluster_.protocols.push_back(std::move(protocols));
  return index;
}

void ClusterProfiles::refer(LinkItem& item, const std::string& entry, Link& link) {
  if (!item.given) {
    for (const Given& file : defaults_) refer(file.index, link.name, link);
    if (network_) refer(network_->index, link.name, link);
    return;
  }
  if (item.given->index != -1) refer(item.given->index, entry, link);
  if (link.profile.given() || item.failed) return;
  item.failed = true;
  if (item.given->index == -1) return;  // the error was reported when the file was read
  std::vector<std::string> names;
  for (const auto& [name, rate] : links_[static_cast<std::size_t>(item.given->index)]) {
    names.push_back(name);
  }
  diagnostics_.error(item.given->where,
                     fmt::format("profile '{}' has no link '{}'", item.given->file, entry),
                     choices(entry, names, "links"));
}

void ClusterProfiles::refer(int profile, const std::string& entry, Link& link) const {
  const std::map<std::string, double>& links = links_[static_cast<std::size_t>(profile)];
  const auto found = links.find(entry);
  if (found == links.end()) return;
  link.profile = {profile, entry};
  if (link.bandwidth == 0) link.bandwidth = found->second;
}

void ClusterProfiles::lacks(const std::string& what, const SourceRange& where, std::string_view key,
                            const std::string& measured) {
  diagnostics_.error(
      where, fmt::format("{} lacks '{}'", what, key),
      cluster_.profiles.empty() ? "" : fmt::format("no profile has {} either", measured));
}

void ClusterProfiles::finish() {
  std::vector<Given> candidates = defaults_;
  if (network_) candidates.push_back(*network_);
  for (const Given& candidate : candidates) {
    const auto index = static_cast<std::size_t>(candidate.index);
    if (!cluster_.profiles[index].collectives.empty()) {
      cluster_.collectives_profile = {candidate.index, ""};
    }
  }
  if (!diagnostics_.ok()) return;
  for (const Given& file : defaults_) warn_of_unused(file);
  if (network_) warn_of_unused(*network_);
}

void ClusterProfiles::warn_of_unused(const Given& file) {
  const auto uses = [&](const auto& item) { return item.profile.profile == file.index; };
  if (cluster_.collectives_profile.profile == file.index ||
      std::any_of(cluster_.kinds.begin(), cluster_.kinds.end(), uses) ||
      std::any_of(cluster_.links.begin(), cluster_.links.end(), uses)) {
    return;
  }
  const Profile& profile = cluster_.profiles[static_cast<std::size_t>(file.index)];
  diagnostics_.warning(
      file.where, fmt::format("nothing of the cluster is in profile '{}'", file.file),
      profile.devices.empty()
          ? "names of links count, as in agpcs-profile --show"
          : fmt::format("its devices: {}", fmt::join(names_of(profile.devices), ", ")));
}

}  // namespace agpcs
