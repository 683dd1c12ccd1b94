// SPDX-License-Identifier: Apache-2.0
// Prints docs/reference/kinds.md.
#include "ir/base/check.h"
#include "tools/plan/kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

constexpr char kIntroduction[] =
    "<!-- Printed by `agpcs-plan kinds --markdown` from frontend/cluster/catalog/catalog.yaml. "
    "-->\n"
    "# Accelerators and networks by name\n"
    "\n"
    "[cluster.yaml](cluster_yaml.md#device_kinds) may call these by name instead of giving their "
    "figures.\n"
    "`agpcs-plan kinds` lists them, `agpcs-plan kinds NAME` shows one with the source of each "
    "figure.\n"
    "\n"
    "Every figure stands beside the source that states it: data sheets and white papers of the "
    "vendors, read there or in\n"
    "quotations, else public tables. What no source states is not here. Memory, bandwidth, "
    "processors, clocks, power and\n"
    "fp32 peaks were compared with TechPowerUp's, where it has the device; where they differ, the "
    "vendor or the driver\n"
    "counts. The commands check the catalog when they read it: units and ranges, and that each "
    "peak is what lanes,\n"
    "processors and clock give.\n"
    "\n"
    "- **peak**: dense, accumulating in fp32. `fp32` is full single precision, by matrix units "
    "where they compute it (AMD).\n"
    "- **lanes**: fused multiply-adds a clock of one processor. A peak is 2 x lanes x processors x "
    "boost clock; products of\n"
    "  matrices may be stated at a lower clock.\n"
    "- **memory**: what the board has; drivers and error correction keep a part of it.\n"
    "- **l1_cache**: of one processor, with its shared memory where both are one. **l2_cache**, "
    "**l3_cache**: of the device.\n"
    "- **bandwidth** of a network: nominal, in each direction, of one device's port or of one NIC. "
    "Messages reach less;\n"
    "  measure them with `agpcs-profile`, or give `bandwidth` yourself.\n"
    "- **latency** of a network: of a small message, end to end.\n";

// Returns the figures in one line per source.
template <typename Entry>
std::string by_source(const Entry& entry) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const CatalogFigure& figure : entry.figures) {
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const auto& one) { return one.first == figure.source; });
    if (line == lines.end()) line = lines.insert(lines.end(), {figure.source, ""});
    if (!line->second.empty()) line->second += ", ";
    line->second += figure.key + " " + figure.text;
  }
  std::string text;
  for (const auto& [source, line] : lines) {
    fmt::format_to(Out(text), "- [{0}](#source-{0}): {1}\n", source, line);
  }
  return text;
}

template <typename Entry>
std::string section_of(const Entry& entry, const std::string& what) {
  std::string text = fmt::format("\n### {}\n\n{}", entry.name, what);
  if (!entry.note.empty()) text += "; " + entry.note;
  return text + ".\n\n" + by_source(entry);
}

}  // namespace

std::string kinds_page(const Catalog& catalog) {
  const Result<ShownKinds> all = select_kinds(catalog, "");
  AGPCS_CHECK(all.ok(), "{}", all.status().message());
  std::string text = kIntroduction;
  text += "\n## Overview\n\n```text\n" + kinds_text(*all) + "```\n";
  text += "\n## Accelerators\n";
  for (const AcceleratorKind& a : catalog.accelerators) {
    text += section_of(a, fmt::format("Architecture {}", a.architecture));
  }
  text += "\n## Networks\n";
  for (const NetworkKind& network : catalog.networks) {
    text += section_of(network, fmt::format("Kind {}", network.kind));
  }
  text += "\n## Sources\n\n";
  for (const CatalogSource& source : catalog.sources) {
    fmt::format_to(Out(text), "- <a id=\"source-{0}\"></a>{0}: {1}\n", source.name, source.text);
  }
  return text;
}

}  // namespace agpcs
