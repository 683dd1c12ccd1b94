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
    "- **message_traffic**: bytes that the device's memory moves for each byte that it sends or "
    "receives. Operators that\n"
    "  run meanwhile have so much less of its bandwidth, and take that much longer; a profile that "
    "measured `overlap` comes\n"
    "  in its place.\n"
    "- **bandwidth** of a network: nominal, in each direction, of one device's port or of one "
    "NIC.\n"
    "- **efficiency** of a network: the part of its bandwidth that large messages get. A network "
    "without it is planned with\n"
    "  all of its bandwidth, as no source is here. A `bandwidth` that the file gives is taken as "
    "it "
    "is.\n"
    "- **latency** of a network: of a small message, end to end.\n"
    "- **protocols** of a network: what NCCL's collectives cost on it, by size "
    "([below](#protocols)). A `latency` that the\n"
    "  file gives comes in their place, and so does a profile.\n";

constexpr char kProtocols[] =
    "\n## Protocols\n"
    "\n"
    "NCCL moves the bytes of a collective by one of three protocols. LL sends words of 8 bytes, "
    "half of them flags; LL128\n"
    "sends lines of 128 bytes, 8 of them a flag; Simple sends chunks, with a barrier after each. "
    "By each, a collective\n"
    "takes\n"
    "\n"
    "    launch + start + steps x step + latencies of the messages that follow one another + bytes "
    "/ (rate x bandwidth)\n"
    "\n"
    "with the figures below, and the bandwidth that large messages get. Simple's rate is 1. A path "
    "has the slowest figures of\n"
    "its links, and a protocol that one of them lacks is not used. A ring has 2 (n - 1) steps.\n"
    "\n"
    "NCCL goes over from LL128 to Simple where it expects Simple to be faster. It expects that "
    "LL128 has `ll128_expected` of\n"
    "Simple's bandwidth; measured, it has `ll128_rate`. So NCCL stays with LL128 for too long, and "
    "its times fall where it\n"
    "goes over. Ours do not fall as bytes grow: a collective takes the least of LL, LL128, and "
    "Simple, where Simple is priced\n"
    "at no less than at the size at which NCCL goes over to it.\n"
    "\n"
    "`launch` and `step` are what curves of `nccl-tests` show beyond NCCL's own model. Most of "
    "these curves launch all\n"
    "devices of a host from one thread; with a process for each device they may be less.\n"
    "[predictions.md](../results/predictions.md) has the curves and what the model makes of them.\n"
    "\n"
    "What has no source here is left out. TCP, xGMI and Gaudi have no protocols, nor has NVLink "
    "SHARP, by which H100 and\n"
    "B200 sum in the switch: there NCCL is faster than the ring. A message from one device to "
    "another takes its latency and\n"
    "the bandwidth that large messages get.\n";

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
    std::string what = fmt::format("Kind {}", network.kind);
    if (!network.protocols.empty()) what += ", protocols " + network.protocols;
    text += section_of(network, what);
  }
  text += kProtocols;
  for (const ProtocolKind& protocols : catalog.protocols) {
    text += fmt::format("\n### {}\n\n", protocols.name);
    if (!protocols.note.empty()) text += protocols.note + ".\n\n";
    text += by_source(protocols);
  }
  text += "\n## Sources\n\n";
  for (const CatalogSource& source : catalog.sources) {
    fmt::format_to(Out(text), "- <a id=\"source-{0}\"></a>{0}: {1}\n", source.name, source.text);
  }
  return text;
}

}  // namespace agpcs
