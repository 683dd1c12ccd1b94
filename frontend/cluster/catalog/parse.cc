// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/catalog/check.h"
#include "frontend/cluster/yaml.h"
#include "ir/plan/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace agpcs {
namespace {

constexpr FileKind kCatalogFile = {"catalog", "frontend/cluster/catalog/catalog.yaml"};

/// A figure that is one number, and the range in which it is credible.
template <typename Entry>
struct NumberKey {
  const char* key;
  std::optional<QuantityKind> quantity;  // without: a number
  double least, most;
  double Entry::*value;
};

constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

constexpr NumberKey<AcceleratorKind> kAcceleratorNumbers[] = {
    {"memory", QuantityKind::kBytes, kGiB, 1024 * kGiB, &AcceleratorKind::memory},
    {"memory_bandwidth", QuantityKind::kBytesPerSecond, 50e9, 20e12,
     &AcceleratorKind::memory_bandwidth},
    {"boost_clock", QuantityKind::kHertz, 500e6, 4e9, &AcceleratorKind::boost_clock},
    {"board_power", QuantityKind::kWatts, 20, 3000, &AcceleratorKind::board_power},
    {"l1_cache", QuantityKind::kBytes, 8 * kKiB, kMiB, &AcceleratorKind::l1_cache},
    {"l2_cache", QuantityKind::kBytes, 512 * kKiB, 512 * kMiB, &AcceleratorKind::l2_cache},
    {"l3_cache", QuantityKind::kBytes, 16 * kMiB, kGiB, &AcceleratorKind::l3_cache},
    {"message_traffic", std::nullopt, 1, 3, &AcceleratorKind::message_traffic},
};
constexpr NumberKey<NetworkKind> kNetworkNumbers[] = {
    {"bandwidth", QuantityKind::kBytesPerSecond, 1e8, 5e12, &NetworkKind::bandwidth},
    {"latency", QuantityKind::kSeconds, 1e-7, 1e-3, &NetworkKind::latency},
    {"efficiency", std::nullopt, 0.3, 1, &NetworkKind::efficiency},
};
constexpr NumberKey<ProtocolKind> kProtocolNumbers[] = {
    {"ll_start", QuantityKind::kSeconds, 1e-7, 1e-4, &ProtocolKind::ll_start},
    {"ll128_start", QuantityKind::kSeconds, 1e-7, 1e-4, &ProtocolKind::ll128_start},
    {"simple_start", QuantityKind::kSeconds, 1e-7, 1e-4, &ProtocolKind::simple_start},
    {"ll_latency", QuantityKind::kSeconds, 1e-7, 1e-4, &ProtocolKind::ll_latency},
    {"ll128_latency", QuantityKind::kSeconds, 1e-7, 1e-4, &ProtocolKind::ll128_latency},
    {"simple_latency", QuantityKind::kSeconds, 1e-7, 1e-4, &ProtocolKind::simple_latency},
    {"ll_rate", std::nullopt, 0.05, 1, &ProtocolKind::ll_rate},
    {"ll128_rate", std::nullopt, 0.05, 1, &ProtocolKind::ll128_rate},
    {"ll128_expected", std::nullopt, 0.05, 0.99, &ProtocolKind::ll128_expected},
    {"launch", QuantityKind::kSeconds, 1e-7, 1e-4, &ProtocolKind::launch},
    {"step", QuantityKind::kSeconds, 1e-7, 1e-4, &ProtocolKind::step},
};
constexpr double kLeastPeak = 1e12, kMostPeak = 1e16;
constexpr std::int64_t kMostProcessors = 1024;
constexpr std::int64_t kMostLanes = 65'536;

const std::vector<std::string> kMemoryTypes = {"GDDR5", "GDDR6", "GDDR6X", "GDDR7",
                                               "HBM2",  "HBM2e", "HBM3",   "HBM3e"};
const std::vector<std::string> kProcesses = {"TSMC 16FF", "TSMC 12FFN", "TSMC N7",  "TSMC N6",
                                             "TSMC N5",   "TSMC 4N",    "TSMC 4NP", "Samsung 8N"};
const std::vector<std::string> kNetworkKinds = {"nvlink", "xgmi", "pcie", "ib", "ethernet"};

class CatalogReader {
 public:
  explicit CatalogReader(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  void read(const YAML::Node& root) {
    const YamlMap map(root, "catalog",
                      {"sources", "architectures", "accelerators", "networks", "protocols"},
                      diagnostics_);
    for_each(map, "sources", [&](const YamlMap::Entry& entry) { read_source(entry); });
    for_each(map, "architectures", [&](const YamlMap::Entry& entry) { read_architecture(entry); });
    for_each(map, "accelerators", [&](const YamlMap::Entry& entry) { read_accelerator(entry); });
    if (map.find("protocols") != nullptr) {
      for_each(map, "protocols", [&](const YamlMap::Entry& entry) { read_protocols(entry); });
    }
    for_each(map, "networks", [&](const YamlMap::Entry& entry) { read_network(entry); });
    check_links();
    check_sources();
  }

  Catalog catalog;

 private:
  template <typename Read>
  void for_each(const YamlMap& map, const char* section, const Read& read_entry) {
    const YAML::Node* const node = map.require(section);
    if (node == nullptr) return;
    const YamlMap entries(*node, section, {}, diagnostics_);
    for (const YamlMap::Entry& entry : entries.entries()) read_entry(entry);
  }

  void read_source(const YamlMap::Entry& entry) {
    if (!entry.value.IsScalar() || entry.value.Scalar().empty()) {
      return diagnostics_.error(range_of(entry.value),
                                fmt::format("source '{}' must be a text, is "
                                            "{}",
                                            entry.key, describe(entry.value)));
    }
    catalog.sources.push_back({entry.key, entry.value.Scalar()});
    source_places_.push_back(range_of(entry.key_node));
  }

  void read_architecture(const YamlMap::Entry& entry) {
    AcceleratorKind architecture;
    const YamlMap map = open(entry, fmt::format("architecture '{}'", entry.key), {"note"});
    read_figures(map, {"note"}, architecture);
    architecture.note = text_of(map, "note");
    architectures_.emplace(entry.key, std::move(architecture));
  }

  void read_accelerator(const YamlMap::Entry& entry) {
    check_name(entry);
    const YamlMap map =
        open(entry, fmt::format("accelerator '{}'", entry.key), {"architecture", "note"});
    AcceleratorKind accelerator;
    std::vector<std::string> names;
    for (const auto& [name, figures] : architectures_) names.push_back(name);
    map.require("architecture");
    const std::optional<std::string> architecture =
        map.choice("architecture", "architecture", "architectures", names);
    if (architecture) accelerator = architectures_.at(*architecture);
    std::vector<CatalogFigure> inherited = std::exchange(accelerator.figures, {});
    accelerator.name = entry.key;
    accelerator.architecture = architecture.value_or("");
    const std::string note = text_of(map, "note");
    if (!note.empty()) accelerator.note = note;
    read_figures(map, {"architecture", "note"}, accelerator);
    for (CatalogFigure& figure : inherited) {
      if (!has_figure(accelerator.figures, figure.key)) {
        accelerator.figures.push_back(std::move(figure));
      }
    }
    for (const std::string& message : implausible_figures(accelerator)) {
      diagnostics_.error(range_of(entry.key_node), fmt::format("{} {}", map.what(), message));
    }
    places_.push_back(range_of(entry.key_node));
    catalog.accelerators.push_back(std::move(accelerator));
  }

  void read_network(const YamlMap::Entry& entry) {
    check_name(entry);
    const YamlMap map =
        open(entry, fmt::format("network '{}'", entry.key), {"kind", "protocols", "note"});
    NetworkKind network;
    network.name = entry.key;
    network.note = text_of(map, "note");
    map.require("kind");
    network.kind = map.choice("kind", "kind", "kinds", kNetworkKinds).value_or("");
    std::vector<std::string> names;
    for (const ProtocolKind& protocols : catalog.protocols) names.push_back(protocols.name);
    network.protocols = map.choice("protocols", "protocols", "protocols", names).value_or("");
    read_figures(map, {"kind", "protocols", "note"}, network);
    if (network.bandwidth == 0) {
      diagnostics_.error(range_of(entry.key_node), fmt::format("{} lacks 'bandwidth'", map.what()));
    }
    catalog.networks.push_back(std::move(network));
  }

  void read_protocols(const YamlMap::Entry& entry) {
    const YamlMap map = open(entry, fmt::format("protocols '{}'", entry.key), {"note"});
    ProtocolKind protocols;
    protocols.name = entry.key;
    protocols.note = text_of(map, "note");
    read_figures(map, {"note"}, protocols);
    for (const char* key :
         {"ll_start", "simple_start", "ll_latency", "simple_latency", "ll_rate"}) {
      if (has_figure(protocols.figures, key)) continue;
      diagnostics_.error(range_of(entry.key_node), fmt::format("{} lacks '{}'", map.what(), key));
    }
    catalog.protocols.push_back(std::move(protocols));
  }

  // Opens an entry, whose keys are `own` and the names of sources.
  YamlMap open(const YamlMap::Entry& entry, const std::string& what, std::vector<std::string> own) {
    for (const CatalogSource& source : catalog.sources) own.push_back(source.name);
    return {entry.value, what, std::move(own), diagnostics_};
  }

  void check_name(const YamlMap::Entry& entry) {
    if (is_name(entry.key)) return;
    diagnostics_.error(range_of(entry.key_node), fmt::format("'{}' is no name", entry.key),
                       "a name has letters, digits, '_', '.' and '-'");
  }

  static std::string text_of(const YamlMap& map, const char* key) {
    const YAML::Node* const node = map.find(key);
    return node != nullptr && node->IsScalar() ? node->Scalar() : "";
  }

  static bool has_figure(const std::vector<CatalogFigure>& figures, const std::string& key) {
    return std::any_of(figures.begin(), figures.end(),
                       [&](const CatalogFigure& figure) { return figure.key == key; });
  }

  // Reads the figures of all sources; other keys of `map` are in `own`.
  template <typename Entry>
  void read_figures(const YamlMap& map, const std::vector<std::string>& own, Entry& entry) {
    for (const YamlMap::Entry& of_source : map.entries()) {
      if (std::find(own.begin(), own.end(), of_source.key) != own.end()) continue;
      used_sources_.insert(of_source.key);
      const YamlMap figures(of_source.value, map.what(), keys_of(entry), diagnostics_);
      for (const YamlMap::Entry& figure : figures.entries()) {
        read_figure(figures, figure, of_source.key, entry);
      }
    }
  }

  static std::vector<std::string> keys_of(const AcceleratorKind& /*entry*/) {
    std::vector<std::string> keys = {"memory_type", "peak",    "processors",
                                     "lanes",       "process", "links"};
    for (const auto& number : kAcceleratorNumbers) keys.emplace_back(number.key);
    return keys;
  }

  static std::vector<std::string> keys_of(const NetworkKind& /*entry*/) {
    return keys_in(std::span(kNetworkNumbers));
  }
  static std::vector<std::string> keys_of(const ProtocolKind& /*entry*/) {
    return keys_in(std::span(kProtocolNumbers));
  }

  template <typename Entry, std::size_t kCount>
  static std::vector<std::string> keys_in(std::span<const NumberKey<Entry>, kCount> numbers) {
    std::vector<std::string> keys;
    for (const NumberKey<Entry>& number : numbers) keys.emplace_back(number.key);
    return keys;
  }

  // Notes a figure, and reports one that the entry has already.
  template <typename Entry>
  void add_figure(const YamlMap& map, Entry& entry, const YAML::Node& at, std::string key,
                  std::string text, const std::string& source) {
    if (has_figure(entry.figures, key)) {
      diagnostics_.error(range_of(at), fmt::format("'{}' is twice in {}", key, map.what()));
    }
    entry.figures.push_back({std::move(key), std::move(text), source});
  }

  void read_figure(const YamlMap& map, const YamlMap::Entry& figure, const std::string& source,
                   AcceleratorKind& entry) {
    const std::string& key = figure.key;
    if (key == "peak") return read_peak(map, figure, source, entry);
    if (key == "lanes") return read_lanes(map, figure, source, entry);
    if (key == "links") return read_links(map, figure, source, entry);
    if (key == "processors") {
      const auto count = map.integer(key, 1, kMostProcessors);
      entry.processors = static_cast<double>(count.value_or(0));
    } else if (key == "memory_type") {
      entry.memory_type = map.choice(key, "memory type", "types", kMemoryTypes).value_or("");
    } else if (key == "process") {
      entry.process = map.choice(key, "process", "processes", kProcesses).value_or("");
    } else {
      read_number(map, key, std::span(kAcceleratorNumbers), entry);
    }
    add_figure(map, entry, figure.key_node, key, describe_scalar(figure.value), source);
  }

  void read_figure(const YamlMap& map, const YamlMap::Entry& figure, const std::string& source,
                   NetworkKind& entry) {
    read_number(map, figure.key, std::span(kNetworkNumbers), entry);
    add_figure(map, entry, figure.key_node, figure.key, describe_scalar(figure.value), source);
  }

  void read_figure(const YamlMap& map, const YamlMap::Entry& figure, const std::string& source,
                   ProtocolKind& entry) {
    read_number(map, figure.key, std::span(kProtocolNumbers), entry);
    add_figure(map, entry, figure.key_node, figure.key, describe_scalar(figure.value), source);
  }

  static std::string describe_scalar(const YAML::Node& node) {
    return node.IsScalar() ? node.Scalar() : "";
  }

  template <typename Entry, std::size_t kCount>
  void read_number(const YamlMap& map, const std::string& key,
                   std::span<const NumberKey<Entry>, kCount> numbers, Entry& entry) {
    for (const NumberKey<Entry>& number : numbers) {
      if (key != number.key) continue;
      const std::optional<double> value = number.quantity
                                              ? map.quantity(key, *number.quantity, Sign::kPositive)
                                              : map.number(key, Sign::kPositive);
      if (!value) return;
      if (*value < number.least || *value > number.most) out_of_range(map, key, *map.find(key));
      entry.*number.value = *value;
    }
  }

  void out_of_range(const YamlMap& map, const std::string& key, const YAML::Node& node) {
    diagnostics_.error(range_of(node), fmt::format("'{}' of {} is not credible: {}", key,
                                                   map.what(), describe(node)));
  }

  void read_peak(const YamlMap& map, const YamlMap::Entry& figure, const std::string& source,
                 AcceleratorKind& entry) {
    const YamlMap peaks(figure.value, fmt::format("peak of {}", map.what()), names_in(kPrecisions),
                        diagnostics_);
    for (const YamlMap::Entry& peak : peaks.entries()) {
      const auto value = peaks.quantity(peak.key, QuantityKind::kFlops, Sign::kPositive);
      if (!value) continue;
      if (*value < kLeastPeak || *value > kMostPeak) out_of_range(peaks, peak.key, peak.value);
      add_figure(map, entry, peak.key_node, "peak " + peak.key, describe_scalar(peak.value),
                 source);
      entry.peak[peak.key] = *value;
    }
  }

  void read_lanes(const YamlMap& map, const YamlMap::Entry& figure, const std::string& source,
                  AcceleratorKind& entry) {
    const YamlMap lanes(figure.value, fmt::format("lanes of {}", map.what()), names_in(kPrecisions),
                        diagnostics_);
    for (const YamlMap::Entry& lane : lanes.entries()) {
      const auto count = lanes.integer(lane.key, 1, kMostLanes);
      if (!count) continue;
      add_figure(map, entry, lane.key_node, "lanes " + lane.key, describe_scalar(lane.value),
                 source);
      entry.lanes[lane.key] = static_cast<double>(*count);
    }
  }

  void read_links(const YamlMap& map, const YamlMap::Entry& figure, const std::string& source,
                  AcceleratorKind& entry) {
    if (!figure.value.IsSequence()) {
      return diagnostics_.error(range_of(figure.value),
                                fmt::format("'links' of {} must be a list of networks, is {}",
                                            map.what(), describe(figure.value)));
    }
    for (const YAML::Node& link : figure.value) entry.links.push_back(describe_scalar(link));
    add_figure(map, entry, figure.key_node, "links",
               fmt::format("{}", fmt::join(entry.links, ", ")), source);
  }

  void check_links() {
    const std::vector<std::string> names = catalog.network_names();
    for (std::size_t i = 0; i < catalog.accelerators.size(); ++i) {
      const AcceleratorKind& accelerator = catalog.accelerators[i];
      for (const std::string& link : accelerator.links) {
        if (catalog.find_network(link) != nullptr) continue;
        diagnostics_.error(places_[i],
                           fmt::format("accelerator '{}' has link '{}', which is no "
                                       "network",
                                       accelerator.name, link),
                           did_you_mean(link, names, "networks"));
      }
    }
  }

  void check_sources() {
    for (std::size_t i = 0; i < catalog.sources.size(); ++i) {
      if (used_sources_.contains(catalog.sources[i].name)) continue;
      diagnostics_.error(source_places_[i],
                         fmt::format("no figure is from source '{}'", catalog.sources[i].name));
    }
  }

  Diagnostics& diagnostics_;
  std::map<std::string, AcceleratorKind> architectures_;
  std::set<std::string> used_sources_;
  std::vector<SourceRange> places_, source_places_;  // parallel to accelerators and sources
};

}  // namespace

Result<Catalog> parse_catalog(std::string_view text, const std::string& file) {
  const std::string source(text);
  Diagnostics diagnostics(file, source);
  CatalogReader reader(diagnostics);
  try {
    if (const auto root = load_yaml(source, kCatalogFile, diagnostics)) reader.read(*root);
  } catch (const YAML::Exception& exception) {
    return internal_error(fmt::format("{}: yaml-cpp: {}", file, exception.what()));
  }
  AGPCS_RETURN_IF_ERROR(diagnostics.status());
  return std::move(reader.catalog);
}

}  // namespace agpcs
