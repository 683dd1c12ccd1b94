// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/file.h"

#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/kind_figures.h"
#include "frontend/cluster/network.h"
#include "frontend/cluster/port.h"
#include "frontend/cluster/profile.h"
#include "frontend/cluster/training.h"
#include "frontend/cluster/yaml.h"
#include "ir/graph/op_table.h"
#include "ir/plan/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr FileKind kClusterFile = {"cluster file", "docs/reference/cluster_yaml.md"};
constexpr std::int64_t kMostDevicesPerHost = 256;
constexpr std::size_t kMostHosts = 1024;
// The default interconnect of a host's devices: PCIe 3.0 x16 with its measured figures.
constexpr double kDefaultInterconnectBandwidth = 12e9;
constexpr double kDefaultInterconnectLatency = 5e-6;
constexpr double kDefaultNicLatency = 20e-6;

/// Reads the whole file. Errors go to `diagnostics`, and reading goes on.
class ClusterReader {
 public:
  ClusterReader(const ReadProfile& read, const std::string& file, const UnsaidPrecision& unsaid,
                Diagnostics& diagnostics)
      : unsaid_(unsaid), diagnostics_(diagnostics), profiles_(read, file, cluster, diagnostics) {}

  void read(const YAML::Node& root) {
    const YamlMap map(root, "cluster file",
                      {"name", "profile", "device_kinds", "hosts", "network", "training"},
                      diagnostics_);
    if (!root.IsMap()) return;
    const YAML::Node* const network = map.find("network");
    read_profiles(map.find("profile"), network);
    cluster.name = map.name("name").value_or("cluster");
    if (const YAML::Node* kinds = map.find("device_kinds")) {
      read_kinds(*kinds);
    } else if (map.find("hosts") == nullptr) {
      map.require("device_kinds");  // hosts may have kinds of the catalog alone
    }
    if (const YAML::Node* hosts = map.require("hosts")) read_hosts(*hosts);
    std::vector<const AcceleratorKind*> hardware;
    for (const KindPlace& place : kind_places_) hardware.push_back(place.hardware);
    add_catalog_figures(cluster, hardware);
    read_network(network ? *network : YAML::Node(), nics_, profiles_, cluster, diagnostics_);
    training.loss.by_shape = true;  // unless the file names a loss
    const YAML::Node* const node = map.find("training");
    if (node != nullptr) training = read_training(*node, diagnostics_);
    const bool says_precision =
        node != nullptr && node->IsMap() && (*node)["precision"].IsDefined();
    if (!says_precision && unsaid_) training.precision = unsaid_();
    check_kinds();
    profiles_.finish();
  }

  Cluster cluster;
  Training training;

 private:
  using LinkItem = ClusterProfiles::LinkItem;
  struct KindPlace {
    SourceRange name, peak, profile;
    bool used = false;
    bool wrong_hardware = false;                // an error has been reported
    std::optional<Precision> measured_in = {};  // its profile's precision
    const AcceleratorKind* hardware = nullptr;  // of the catalog
  };

  void read_profiles(const YAML::Node* defaults, const YAML::Node* network) {
    if (defaults != nullptr) profiles_.read_defaults(*defaults);
    if (network == nullptr || !network->IsMap()) return;
    const YAML::Node profile = (*network)["profile"];
    if (profile && !profile.IsNull()) profiles_.read_network(profile);
  }

  void read_kinds(const YAML::Node& node) {
    const YamlMap map(node, "device_kinds", {}, diagnostics_);
    for (const YamlMap::Entry& entry : map.entries()) {
      if (!is_name(entry.key)) {
        diagnostics_.error(range_of(entry.key_node),
                           fmt::format("'{}' is no name for a device kind", entry.key),
                           "a name has letters, digits, '_', '.' and '-'");
      }
      read_kind(entry);
    }
    if (node.IsMap() && node.size() == 0) {
      diagnostics_.error(range_of(node), "'device_kinds' has no device kind");
    }
  }

  void read_kind(const YamlMap::Entry& entry) {
    const AcceleratorKind* hardware = catalog().find_accelerator(entry.key);
    const SourceRange name = range_of(entry.key_node);
    if (hardware != nullptr && entry.value.IsNull()) {
      add_kind(*hardware, name);
      return;
    }
    const YamlMap map(entry.value, fmt::format("device kind '{}'", entry.key),
                      {"hardware", "memory", "memory_bandwidth", "peak", "launch_overhead",
                       "efficiency", "host_link", "profile"},
                      diagnostics_);
    DeviceKind kind;
    kind.name = entry.key;
    KindPlace place = {name, name, name};
    if (entry.value.IsMap()) {
      if (const YAML::Node* node = map.find("hardware")) {
        place.peak = range_of(*node);
        hardware = read_hardware(*node, map.what());
        place.wrong_hardware = hardware == nullptr;
      }
      if (hardware != nullptr) take_figures(*hardware, kind);
      read_figures(map, kind, place);
      kind.launch_overhead =
          map.quantity("launch_overhead", QuantityKind::kSeconds, Sign::kNotNegative)
              .value_or(kind.launch_overhead);
      if (const YAML::Node* efficiency = map.find("efficiency")) {
        read_efficiency(*efficiency, map.what(), kind);
      }
      if (const YAML::Node* link = map.find("host_link")) {
        kind.host_link = read_host_link(*link, map.what(), diagnostics_).value_or(HostLink());
      }
    }
    place.hardware = hardware;
    cluster.kinds.push_back(std::move(kind));
    kind_places_.push_back(place);
  }

  // Adds a kind that is called like an accelerator and has its figures.
  int add_kind(const AcceleratorKind& hardware, const SourceRange& where) {
    DeviceKind kind;
    kind.name = hardware.name;
    take_figures(hardware, kind);
    KindPlace place = {where, where, where};
    place.hardware = &hardware;
    if (const DeviceProfile* const device = profiles_.refer(std::nullopt, kind)) {
      place.measured_in = device->precision;
    }
    cluster.kinds.push_back(std::move(kind));
    kind_places_.push_back(std::move(place));
    return static_cast<int>(cluster.kinds.size()) - 1;
  }

  const AcceleratorKind* read_hardware(const YAML::Node& node, const std::string& of) {
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    if (text == kHardwareToFillIn) {
      diagnostics_.error(range_of(node),
                         fmt::format("'hardware' of {} is still to be filled in", of),
                         "name the accelerator (agpcs-plan kinds lists all), or give memory, "
                         "memory_bandwidth and peak in its place");
      return nullptr;
    }
    const AcceleratorKind* const hardware = catalog().find_accelerator(text);
    if (hardware != nullptr) return hardware;
    const std::string hint = did_you_mean_of_catalog(text, catalog().accelerator_names());
    diagnostics_.error(range_of(node), fmt::format("unknown hardware {}", describe(node)),
                       hint.empty() ? "agpcs-plan kinds lists all" : hint);
    return nullptr;
  }

  static void take_figures(const AcceleratorKind& hardware, DeviceKind& kind) {
    kind.memory_bytes = std::llround(hardware.memory);
    kind.memory_bandwidth = hardware.memory_bandwidth;
    if (hardware.processors > 0) {
      kind.processors = {static_cast<int>(std::lround(hardware.processors)), hardware.board_power,
                         hardware.process, hardware.memory_type};
    }
    for (const auto& [precision, flops] : hardware.peak) {
      if (const auto known = value_named(kPrecisions, precision)) kind.peak_flops[*known] = flops;
    }
  }

  // Reads the figures of the file, which come before those that the kind has already.
  void read_figures(const YamlMap& map, DeviceKind& kind, KindPlace& place) {
    if (kind.memory_bytes == 0 && !place.wrong_hardware) map.require("memory");
    if (const auto bytes = map.quantity("memory", QuantityKind::kBytes, Sign::kPositive)) {
      kind.memory_bytes = std::llround(std::min(*bytes, 0x1p60));
    }
    kind.memory_bandwidth =
        map.quantity("memory_bandwidth", QuantityKind::kBytesPerSecond, Sign::kPositive)
            .value_or(kind.memory_bandwidth);
    if (const YAML::Node* peak = map.find("peak")) {
      place.peak = range_of(*peak);
      read_peak(*peak, map.what(), kind);
    }
    const bool has_bandwidth = kind.memory_bandwidth > 0;
    if (!refer(map, kind, place) || place.wrong_hardware) return;
    for (const char* key : {"memory_bandwidth", "peak"}) {
      const bool has = key == std::string_view("peak") ? !kind.peak_flops.empty() : has_bandwidth;
      if (has || map.find(key) != nullptr) continue;
      profiles_.lacks(map.what(), map.where(), key,
                      fmt::format("operators of a device '{}'",
                                  kind.profile.given() ? kind.profile.entry : kind.name));
    }
  }

  // Returns whether the file must give the kind's figures itself, because no measurement yields
  // them.
  bool refer(const YamlMap& map, DeviceKind& kind, KindPlace& place) {
    std::optional<ClusterProfiles::Given> given;
    if (const YAML::Node* profile = map.find("profile")) {
      given = profiles_.read(*profile);
      place.profile = given->where;
    }
    const DeviceProfile* const device = profiles_.refer(given, kind);
    if (device == nullptr) return !given;
    place.measured_in = device->precision;
    const double rate = best_rate(*device);
    if (kind.memory_bandwidth == 0) kind.memory_bandwidth = rate;
    return rate == 0;
  }

  // Returns the best rate of the forward passes, in bytes/s.
  static double best_rate(const DeviceProfile& device) {
    double best = 0;
    for (const auto* list : {&device.operators, &device.probes}) {
      for (const MeasuredOperator& op : *list) {
        for (const MeasuredOperator::Point& point : op.points) {
          if (point.forward.seconds == 0) continue;
          best = std::max(best, point.work.forward_bytes / point.forward.seconds);
        }
      }
    }
    return best;
  }

  void read_peak(const YAML::Node& node, const std::string& of, DeviceKind& kind) {
    const YamlMap map(node, fmt::format("peak of {}", of), names_in(kPrecisions), diagnostics_);
    for (const YamlMap::Entry& entry : map.entries()) {
      const std::optional<double> flops =
          map.quantity(entry.key, QuantityKind::kFlops, Sign::kPositive);
      const std::optional<Precision> precision = value_named(kPrecisions, entry.key);
      if (flops && precision) kind.peak_flops[*precision] = *flops;
    }
  }

  void read_efficiency(const YAML::Node& node, const std::string& of, DeviceKind& kind) {
    std::vector<std::string> classes;
    for (int i = 0; i < kOpClassCount; ++i) {
      classes.emplace_back(name_of(static_cast<OpClass>(i)));
    }
    const YamlMap map(node, fmt::format("efficiency of {}", of), classes, diagnostics_);
    for (const YamlMap::Entry& entry : map.entries()) {
      const std::optional<double> fraction = map.number(entry.key, Sign::kPositive);
      if (fraction && *fraction > 1) {
        diagnostics_.error(range_of(entry.value),
                           fmt::format("'{}' of {} must be a fraction of peak, at most 1, is {}",
                                       entry.key, map.what(), describe(entry.value)));
      } else if (fraction) {
        kind.efficiency[entry.key] = *fraction;
      }
    }
  }

  void read_hosts(const YAML::Node& node) {
    if (!node.IsSequence() || node.size() == 0) {
      diagnostics_.error(range_of(node),
                         fmt::format("'hosts' must be a list of hosts, is {}",
                                     node.IsSequence() ? "empty" : describe(node)),
                         "write - {name: a, devices: {kind: v100, count: 4}, ...}");
      return;
    }
    for (std::size_t i = 0; i < node.size(); ++i) {
      read_hosts_alike(node[i], i);
      if (cluster.hosts.size() <= kMostHosts) continue;
      diagnostics_.error(range_of(node[i]),
                         fmt::format("more than {} hosts cannot be planned for", kMostHosts));
      return;
    }
  }

  // Reads an item of `hosts`: a host, or `count` of them. What is wrong with them is said once.
  void read_hosts_alike(const YAML::Node& node, std::size_t index) {
    std::string what = fmt::format("host {}", index + 1);
    if (node.IsMap() && node["name"] && node["name"].IsScalar()) {
      what = fmt::format("host '{}'", node["name"].Scalar());
    }
    const YamlMap map(node, what, {"name", "count", "devices", "interconnect", "nic", "memory"},
                      diagnostics_);
    const std::string name =
        !map.entries().empty() && map.require("name") ? map.name("name").value_or("") : "";
    if (map.find("count") == nullptr) return read_host(map, name);
    const std::int64_t count = map.integer("count", 1, kMostHosts).value_or(1);
    const std::size_t errors = diagnostics_.error_count();
    for (std::int64_t i = 0;
         i < count && cluster.hosts.size() <= kMostHosts && diagnostics_.error_count() == errors;
         ++i) {
      read_host(map, name.empty() ? "" : fmt::format("{}{}", name, i));
    }
  }

  void read_host(const YamlMap& map, const std::string& name) {
    Host host;
    host.name = name;
    host.first_device = cluster.device_count();
    if (!name.empty()) check_host_name(name, *map.find("name"));
    if (const auto bytes = map.quantity("memory", QuantityKind::kBytes, Sign::kPositive)) {
      host.memory_bytes = std::llround(std::min(*bytes, 0x1p60));
    }
    cluster.hosts.push_back(host);
    nics_.push_back({-1, -1, map.where()});
    if (map.entries().empty()) return;
    if (const YAML::Node* devices = map.require("devices")) read_devices(*devices, map.what());
    cluster.hosts.back().device_count = cluster.device_count() - host.first_device;
    add_ports(map);
    if (const YAML::Node* nic = map.find("nic")) read_nic(*nic, map.what());
  }

  void check_host_name(const std::string& name, const YAML::Node& node) {
    const auto [first, added] = host_lines_.emplace(name, node.Mark().line + 1);
    if (added) return;
    diagnostics_.error(range_of(node), fmt::format("two hosts are named '{}'", name),
                       fmt::format("the first is in line {}", first->second));
  }

  // Reads one group of equal devices, or a list of groups.
  void read_devices(const YAML::Node& node, const std::string& host) {
    if (!node.IsSequence()) return read_device_group(node, host);
    for (const YAML::Node& group : node) read_device_group(group, host);
  }

  void read_device_group(const YAML::Node& node, const std::string& host) {
    const YamlMap map(node, fmt::format("devices of {}", host), {"kind", "count"}, diagnostics_);
    if (map.entries().empty()) return;
    const std::optional<int> kind = read_kind_name(map);
    const std::optional<std::int64_t> count =
        map.find("count") ? map.integer("count", 1, kMostDevicesPerHost) : 1;
    if (!kind || !count) return;
    kind_places_[static_cast<std::size_t>(*kind)].used = true;
    const auto host_index = static_cast<int>(cluster.hosts.size()) - 1;
    const Host& owner = cluster.hosts.back();
    for (std::int64_t i = 0; i < *count; ++i) {
      const int index = cluster.device_count() - owner.first_device;
      cluster.devices.push_back({host_index, index, *kind, -1, -1});
    }
  }

  // Returns the kind that a group of devices names. One of the catalog needs no entry in
  // device_kinds.
  std::optional<int> read_kind_name(const YamlMap& map) {
    const YAML::Node* const node = map.require("kind");
    if (node == nullptr) return std::nullopt;
    const std::string text = node->IsScalar() ? node->Scalar() : "";
    std::vector<std::string> names;
    for (const DeviceKind& kind : cluster.kinds) names.push_back(kind.name);
    const auto found = std::find(names.begin(), names.end(), text);
    if (found != names.end()) return static_cast<int>(found - names.begin());
    if (const AcceleratorKind* const hardware = catalog().find_accelerator(text)) {
      return add_kind(*hardware, range_of(*node));
    }
    diagnostics_.error(range_of(*node), fmt::format("unknown device kind {}", describe(*node)),
                       hint_of_kind(text, names));
    return std::nullopt;
  }

  // Kinds of the file come before those of the catalog.
  static std::string hint_of_kind(const std::string& text, const std::vector<std::string>& names) {
    if (nearest(text, names).empty()) {
      const std::string hint = did_you_mean_of_catalog(text, catalog().accelerator_names());
      if (!hint.empty()) return hint;
    }
    return names.empty() ? "describe it in device_kinds, or take one that agpcs-plan kinds lists"
                         : did_you_mean(text, names, "kinds");
  }

  // Adds link "<of> <direction>". Each end has half of the latency, so that two ends together have
  // the latency that the file gives.
  LinkId add_port(LinkItem& item, const std::string& of, const std::string& entry,
                  const char* direction) {
    return profiles_.add_link(item, fmt::format("{} {}", of, direction),
                              fmt::format("{} {}", entry, direction), item.like.latency / 2);
  }

  void add_ports(const YamlMap& host) {
    Link port;
    port.kind = "pcie";
    port.bandwidth = kDefaultInterconnectBandwidth;
    port.latency = kDefaultInterconnectLatency;
    LinkItem item = {port};
    if (const YAML::Node* node = host.find("interconnect")) {
      item = read_port(*node, fmt::format("interconnect of {}", host.what()), port, {}, profiles_,
                       diagnostics_);
    }
    const std::string entry = item.given ? item.given->entry : "";
    const Host& owner = cluster.hosts.back();
    for (DeviceId id = owner.first_device; id < cluster.device_count(); ++id) {
      Device& device = cluster.devices[static_cast<std::size_t>(id)];
      const std::string name = fmt::format("{}/{}", owner.name, device.index);
      const bool one = entry.find('/') != std::string::npos;  // a device, not a host
      const std::string like = entry.empty() ? name
                               : one         ? entry
                                             : fmt::format("{}/{}", entry, device.index);
      device.out = add_port(item, name, like, "out");
      device.in = add_port(item, name, like, "in");
    }
  }

  void read_nic(const YAML::Node& node, const std::string& host) {
    Link port;
    port.kind = "ethernet";
    port.latency = kDefaultNicLatency;
    LinkItem item =
        read_port(node, fmt::format("nic of {}", host), port, {"count"}, profiles_, diagnostics_);
    const std::string& name = cluster.hosts.back().name;
    const bool stands_in = item.given && !item.given->entry.empty();
    const std::string entry = (stands_in ? item.given->entry : name) + " nic";
    nics_.back().out = add_port(item, name + " nic", entry, "out");
    nics_.back().in = add_port(item, name + " nic", entry, "in");
  }

  void check_kinds() {
    for (std::size_t i = 0; i < cluster.kinds.size(); ++i) {
      const DeviceKind& kind = cluster.kinds[i];
      if (!kind_places_[i].used) {
        // A host with an error may be the one that has these devices.
        if (!diagnostics_.ok()) continue;
        diagnostics_.warning(kind_places_[i].name,
                             fmt::format("no host has devices of kind '{}'", kind.name));
      } else if (const std::optional<Precision> measured = kind_places_[i].measured_in;
                 measured && *measured != training.precision) {
        diagnostics_.error(kind_places_[i].profile,
                           fmt::format("device kind '{}' was measured in {}, but the training is "
                                       "in {}",
                                       kind.name, name_of(*measured), name_of(training.precision)),
                           fmt::format("profile it in {}, or train in {}",
                                       name_of(training.precision), name_of(*measured)));
      } else if (!kind.peak_flops.empty() && !kind.peak_flops.contains(training.precision)) {
        std::vector<std::string> has;
        for (const auto& [precision, flops] : kind.peak_flops) has.emplace_back(name_of(precision));
        diagnostics_.error(
            kind_places_[i].peak,
            fmt::format("device kind '{}' has no peak for precision '{}', only for {}", kind.name,
                        name_of(training.precision), fmt::join(has, ", ")),
            fmt::format("add its {} peak, or choose another precision",
                        name_of(training.precision)));
      }
    }
  }

  const UnsaidPrecision& unsaid_;
  Diagnostics& diagnostics_;
  std::vector<NicPorts> nics_;
  std::vector<KindPlace> kind_places_;
  std::map<std::string, int> host_lines_;
  ClusterProfiles profiles_;
};

}  // namespace

Result<ClusterFile> parse_cluster(std::string_view text, const std::string& file,
                                  const ReadProfile& read, const UnsaidPrecision& unsaid) {
  const std::string source(text);
  Diagnostics diagnostics(file, source);
  ClusterReader reader(read, file, unsaid, diagnostics);
  try {
    if (const auto root = load_yaml(source, kClusterFile, diagnostics)) reader.read(*root);
  } catch (const YAML::Exception& exception) {
    return internal_error(fmt::format("{}: yaml-cpp: {}", file, exception.what()));
  }
  AGPCS_RETURN_IF_ERROR(diagnostics.status());
  AGPCS_RETURN_IF_ERROR(verify_cluster(reader.cluster));
  return ClusterFile{std::move(reader.cluster), std::move(reader.training), diagnostics.warnings()};
}

Result<ClusterFile> read_cluster(const std::string& path, const UnsaidPrecision& unsaid) {
  AGPCS_TRY(const std::string text, read_text(path, kClusterFile));
  return parse_cluster(text, path, read_profile, unsaid);
}

}  // namespace agpcs
