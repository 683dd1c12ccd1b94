// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/kinds.h"

#include "frontend/cluster/units.h"
#include "tools/common/joined_rows.h"
#include "tools/common/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;
using Cells = std::vector<std::vector<std::string>>;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr const char* kPrecisions[] = {"fp32", "tf32", "fp16", "bf16"};

// Returns a figure in the column's unit, or "-" if there is none.
std::string cell(double value, double unit) {
  return value > 0 ? fmt::format("{:g}", value / unit) : "-";
}

std::string cell(const std::string& text) { return text.empty() ? "-" : text; }

std::string latency_cell(const NetworkKind& network) {
  return network.latency < 0 ? "-" : print_seconds(network.latency);
}

std::vector<std::string> accelerator_cells(const AcceleratorKind& a) {
  std::vector<std::string> cells = {a.name, cell(a.memory, kGiB), cell(a.memory_type),
                                    cell(a.memory_bandwidth, 1e9)};
  for (const char* precision : kPrecisions) {
    const auto peak = a.peak.find(precision);
    cells.push_back(peak == a.peak.end() ? "-" : cell(peak->second, 1e12));
  }
  for (std::string& text : std::vector<std::string>{cell(a.processors, 1), cell(a.boost_clock, 1e6),
                                                    cell(a.board_power, 1), cell(a.process)}) {
    cells.push_back(std::move(text));
  }
  return cells;
}

std::vector<std::string> network_cells(const NetworkKind& network) {
  return {network.name, network.kind, cell(network.bandwidth, 1e9),
          network.efficiency < 1 ? cell(network.efficiency, 1) : "-", latency_cell(network)};
}

const std::vector<TableColumn> kAcceleratorColumns = {{"accelerator", 14, true},
                                                      {"GiB"},
                                                      {"memory", 6, true},
                                                      {"GB/s"},
                                                      {"fp32"},
                                                      {"tf32"},
                                                      {"fp16"},
                                                      {"bf16"},
                                                      {"procs"},
                                                      {"MHz"},
                                                      {"W"},
                                                      {"process", 0, true}};
const std::vector<TableColumn> kNetworkColumns = {
    {"network", 14, true}, {"kind", 8, true}, {"GB/s"}, {"reached"}, {"latency"}};

// Returns the lines of `text` without blanks at their ends.
std::string without_trailing_blanks(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') result.erase(result.find_last_not_of(' ') + 1);
    result += c;
  }
  return result;
}

template <typename Entry>
std::string figures_text(const Catalog& catalog, const Entry& entry) {
  Cells cells;
  std::vector<std::string> sources;
  for (const CatalogFigure& figure : entry.figures) {
    cells.push_back({figure.key, figure.text, figure.source});
    if (std::find(sources.begin(), sources.end(), figure.source) == sources.end()) {
      sources.push_back(figure.source);
    }
  }
  std::string text = entry.note.empty() ? "" : entry.note + "\n";
  text += table_text({{"figure", 0, true}, {"value", 0, true}, {"source", 0, true}}, cells);
  text += "\nsources\n";
  for (const std::string& source : sources) {
    fmt::format_to(Out(text), "  {}\n    {}\n", source, catalog.find_source(source)->text);
  }
  return text;
}

/// Returns the network with the figures of its protocols.
NetworkKind with_protocols(const Catalog& catalog, NetworkKind network) {
  if (network.protocols.empty()) return network;
  for (CatalogFigure figure : catalog.find_protocols(network.protocols)->figures) {
    figure.key = network.protocols + " " + figure.key;
    network.figures.push_back(std::move(figure));
  }
  return network;
}

template <typename Entry>
void add_sources(const Entry& entry, Json& json) {
  if (!entry.note.empty()) json["note"] = entry.note;
  json["sources"] = Json::object();
  for (const CatalogFigure& figure : entry.figures) json["sources"][figure.key] = figure.source;
}

Json accelerator_json(const AcceleratorKind& a) {
  Json json = {{"name", a.name}, {"architecture", a.architecture}};
  const auto number = [&](const char* key, double value) {
    if (value > 0) json[key] = value;
  };
  const auto count = [&](const char* key, double value) {
    if (value > 0) json[key] = std::llround(value);
  };
  const auto by_precision = [&](const char* key, const std::map<std::string, double>& figures) {
    if (!figures.empty()) json[key] = json_object(figures);
  };
  count("memory_bytes", a.memory);
  json["memory_type"] = a.memory_type;
  number("memory_bytes_per_second", a.memory_bandwidth);
  by_precision("peak_flops", a.peak);
  count("processors", a.processors);
  by_precision("lanes", a.lanes);
  number("boost_hertz", a.boost_clock);
  number("board_watts", a.board_power);
  if (!a.process.empty()) json["process"] = a.process;
  count("l1_cache_bytes", a.l1_cache);
  count("l2_cache_bytes", a.l2_cache);
  count("l3_cache_bytes", a.l3_cache);
  number("message_traffic", a.message_traffic);
  json["links"] = a.links;
  add_sources(a, json);
  return json;
}

Json network_json(const NetworkKind& network) {
  Json json = {
      {"name", network.name}, {"kind", network.kind}, {"bytes_per_second", network.bandwidth}};
  if (network.latency >= 0) json["latency_seconds"] = network.latency;
  if (network.efficiency < 1) json["efficiency"] = network.efficiency;
  if (!network.protocols.empty()) json["protocols"] = network.protocols;
  add_sources(network, json);
  return json;
}

}  // namespace

Result<ShownKinds> select_kinds(const Catalog& catalog, const std::string& name) {
  ShownKinds kinds{catalog, {}, {}};
  const bool is_name =
      catalog.find_accelerator(name) != nullptr || catalog.find_network(name) != nullptr;
  const auto shown = [&](const std::string& of_entry) {
    return is_name ? of_entry == name : resembles(of_entry, name);
  };
  for (const AcceleratorKind& a : catalog.accelerators) {
    if (shown(a.name)) kinds.accelerators.push_back(&a);
  }
  for (const NetworkKind& network : catalog.networks) {
    if (shown(network.name)) kinds.networks.push_back(&network);
  }
  if (!kinds.accelerators.empty() || !kinds.networks.empty()) return kinds;
  std::vector<std::string> names = catalog.accelerator_names();
  for (std::string& network : catalog.network_names()) names.push_back(std::move(network));
  const std::string hint = did_you_mean_of_catalog(name, names);
  return invalid_input(fmt::format("no accelerator and no network is called '{}'\n  hint: {}", name,
                                   hint.empty() ? "agpcs-plan kinds lists all" : hint));
}

std::string kinds_text(const ShownKinds& kinds) {
  if (kinds.accelerators.size() + kinds.networks.size() == 1) {
    if (!kinds.accelerators.empty()) {
      return without_trailing_blanks(figures_text(kinds.catalog, *kinds.accelerators.front()));
    }
    const NetworkKind network = with_protocols(kinds.catalog, *kinds.networks.front());
    return without_trailing_blanks(figures_text(kinds.catalog, network));
  }
  std::string text;
  Cells cells;
  for (const AcceleratorKind* a : kinds.accelerators) cells.push_back(accelerator_cells(*a));
  if (!cells.empty()) {
    text += table_text(kAcceleratorColumns, cells);
    text += "fp32 to bf16: TFLOPS, dense, accumulating in fp32\n";
  }
  cells.clear();
  for (const NetworkKind* network : kinds.networks) cells.push_back(network_cells(*network));
  if (!cells.empty()) {
    if (!text.empty()) text += '\n';
    text += table_text(kNetworkColumns, cells);
    text +=
        "GB/s: nominal, in each direction, of a device's port or of a NIC\n"
        "reached: the part of it that large messages get\n";
  }
  return without_trailing_blanks(text) + "\nwith the name of one: each figure with its source\n";
}

std::string kinds_json(const ShownKinds& kinds) {
  Json sources = Json::object();
  for (const CatalogSource& source : kinds.catalog.sources) sources[source.name] = source.text;
  return json_text(
      {{"accelerators",
        json_array(kinds.accelerators, [](const auto* a) { return accelerator_json(*a); })},
       {"networks",
        json_array(kinds.networks, [](const auto* network) { return network_json(*network); })},
       {"sources", sources}});
}

}  // namespace agpcs
