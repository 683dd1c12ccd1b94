// SPDX-License-Identifier: Apache-2.0
// The format is that of NCCL's src/graph/xml.cc:
//   system > cpu (one for each NUMA node) > pci > ... > pci > gpu > nvlink, xgmi or c2c
//                                                       pci > nic > net
// A <nic> without a PCI device stands below its <cpu>.
#include "tools/cluster/nccl_topo.h"

#include "ir/base/diagnostics.h"
#include "ir/base/read_file.h"

#include <fmt/format.h>
#include <pugixml.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;
constexpr int kMostDepth = 64;
constexpr std::size_t kMostGpus = 256;  // of a host: cluster.yaml takes no more
constexpr int kMostLinks = 1024;
constexpr std::size_t kMostNamePart =
    64;  // characters; YAML's keys, with more than one, have 1,024
constexpr InputKind kTopologyFile = {"topology file of NCCL", kMostBytes,
                                     "NCCL writes it where NCCL_TOPO_DUMP_FILE says"};

/// Returns where a byte of `text` is.
SourceRange place_of(std::string_view text, std::ptrdiff_t offset) {
  if (offset < 0) return {};
  const std::string_view before = text.substr(0, static_cast<std::size_t>(offset));
  const auto lines = static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  const std::size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
  return {lines + 1, static_cast<int>(before.size() - start) + 1, 1};
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

/// Returns "10de" for "0x10de".
std::string without_0x(const std::string& text) {
  return starts_with(text, "0x") ? text.substr(2) : text;
}

/// Reads the tree below <system>.
class TopologyReader {
 public:
  TopologyReader(std::string_view text, Diagnostics& diagnostics)
      : text_(text), diagnostics_(diagnostics) {}

  void read(const pugi::xml_document& document) {
    const pugi::xml_node root = root_of(document);
    if (!root) return;
    check_version(root);
    marked_ = !root.find_node([](const pugi::xml_node& n) { return is(n, "gpu"); }).empty();
    for (const pugi::xml_node& cpu : root.children("cpu")) {
      host_ = host_of(cpu);
      for (const pugi::xml_node& child : cpu.children()) walk(child, 0, 1);
    }
    finish(root);
  }

  std::vector<FoundHost> hosts;

 private:
  static bool is(const pugi::xml_node& node, std::string_view name) { return node.name() == name; }

  SourceRange where(const pugi::xml_node& node) const {
    SourceRange place = place_of(text_, node.offset_debug());
    place.length = static_cast<int>(std::string_view(node.name()).size());
    return place;
  }

  pugi::xml_node root_of(const pugi::xml_document& document) {
    pugi::xml_node root;
    for (const pugi::xml_node& node : document.children()) {
      if (node.type() == pugi::node_doctype) {
        diagnostics_.error({}, "it has a document type, and NCCL's files have none");
        return {};
      }
      if (node.type() == pugi::node_element && !root) root = node;
    }
    if (!root) {
      diagnostics_.error({}, "it has no element, <system> is expected",
                         "NCCL writes such a file where NCCL_TOPO_DUMP_FILE says");
    } else if (!is(root, "system")) {
      diagnostics_.error(where(root),
                         fmt::format("it begins with <{}>, not with <system>", root.name()),
                         is(root, "graphs") ? "that is what NCCL_GRAPH_DUMP_FILE writes; take the "
                                              "file of NCCL_TOPO_DUMP_FILE"
                                            : "it is not a topology file of NCCL");
      return {};
    }
    return root;
  }

  void check_version(const pugi::xml_node& root) {
    const std::string version = root.attribute("version").value();
    if (version == "1" || version == "2") return;  // NCCL's and RCCL's
    if (version.empty()) {
      diagnostics_.warning(where(root),
                           "the file does not say its version; it is read as version 1");
      return;
    }
    diagnostics_.error(where(root),
                       fmt::format("the file has version {}; 1 and 2 are known", version));
  }

  /// Returns the host of a <cpu>, as an index.
  std::size_t host_of(const pugi::xml_node& cpu) {
    const auto [at, fresh] = hosts_.try_emplace(cpu.attribute("host_hash").value(), hosts.size());
    if (fresh) hosts.emplace_back();
    return at->second;
  }

  /// Returns an attribute that is a whole number, or `absent`.
  int number(const pugi::xml_node& node, const char* key, int least, int most, int absent) {
    const pugi::xml_attribute attribute = node.attribute(key);
    if (attribute.empty()) return absent;
    const std::string_view text = attribute.value();
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= least &&
        value <= most) {
      return value;
    }
    diagnostics_.error(where(node),
                       fmt::format("{}=\"{}\" of <{}> is no whole number from {} to {}", key, text,
                                   node.name(), least, most));
    return absent;
  }

  /// Returns an attribute that becomes part of a kind's name, in small letters.
  std::string name_part(const pugi::xml_node& node, const char* key) {
    const std::string_view text = node.attribute(key).value();
    if (text.size() <= kMostNamePart) return lower(text);
    diagnostics_.error(where(node),
                       fmt::format("{} of <{}> has {} characters, at most {} are expected", key,
                                   node.name(), text.size(), kMostNamePart));
    return {};
  }

  /// Reads "16.0 GT/s PCIe" and "16". Some kernels say "Unknown speed", and virtual ones nothing.
  double pcie_of(const pugi::xml_node& pci) {
    double speed = 0;
    const std::string_view text = pci.attribute("link_speed").value();
    std::from_chars(text.data(), text.data() + text.size(), speed);
    const std::string_view width = pci.attribute("link_width").value();
    int lanes = 0;
    std::from_chars(width.data(), width.data() + width.size(), lanes);
    return pcie_bandwidth(speed, lanes);
  }

  /// Reads what is below a <cpu>. `pcie` is the narrowest link above the node; 0: none is known.
  void walk(const pugi::xml_node& node, double pcie, int depth) {
    if (depth > kMostDepth) {
      if (!too_deep_) {
        diagnostics_.error(where(node), fmt::format("it has elements {} deep, at most {} are "
                                                    "expected",
                                                    depth, kMostDepth));
      }
      too_deep_ = true;
      return;
    }
    if (is(node, "nic")) return read_nic(node, false);
    if (!is(node, "pci")) return;
    const double own = pcie_of(node);
    if (own > 0) pcie = pcie > 0 ? std::min(pcie, own) : own;
    const std::string type = lower(node.attribute("class").value());
    const pugi::xml_node gpu = node.child("gpu");
    if (gpu || (!marked_ && is_gpu(node, type))) read_gpu(node, gpu, pcie);
    if (!node.child("nic") && starts_with(type, "0x02")) read_silent_nic(node, type);
    for (const pugi::xml_node& child : node.children()) {
      if (is(child, "nic")) {
        read_nic(child, starts_with(type, "0x0207"));
      } else {
        walk(child, pcie, depth + 1);
      }
    }
  }

  // 3D controllers, displays of AMD's accelerators and processing accelerators are. Graphics boards
  // are where they are of a maker of accelerators, and not the display of a server.
  static bool is_gpu(const pugi::xml_node& pci, const std::string& type) {
    if (starts_with(type, "0x0300")) {
      const std::string vendor = lower(pci.attribute("vendor").value());
      return vendor == "0x10de" || vendor == "0x1002";
    }
    return starts_with(type, "0x0302") || starts_with(type, "0x0380") ||
           starts_with(type, "0x1200");
  }

  void read_gpu(const pugi::xml_node& pci, const pugi::xml_node& node, double pcie) {
    FoundGpu gpu;
    gpu.bus = lower(pci.attribute("busid").value());
    gpu.vendor = without_0x(name_part(pci, "vendor"));
    gpu.device = without_0x(name_part(pci, "device"));
    gpu.pcie = pcie;
    gpu.index = number(node, "dev", 0, 1 << 16, -1);
    gpu.gfx = gfx_of(name_part(node, "gcn"));
    const int sm = number(node, "sm", 0, 1 << 16, 0);
    (is_amd(gpu) ? gpu.processors : gpu.sm) = sm;  // RCCL writes the number of processors there
    for (const pugi::xml_node& link : node.children()) read_link(link, gpu);
    FoundHost& host = hosts[host_];
    if (gpu.index >= 0 && !numbers_.insert({host_, gpu.index}).second) {
      diagnostics_.error(where(node), fmt::format("two GPUs have dev=\"{}\"", gpu.index));
    }
    if (host.gpus.size() == kMostGpus) {
      diagnostics_.error(where(pci), fmt::format("a host has more than {} GPUs", kMostGpus));
    }
    host.gpus.push_back(std::move(gpu));
  }

  /// Returns "90a" for what versions of RCCL write: "910" and "gfx90a".
  static std::string gfx_of(std::string_view text) {
    if (starts_with(text, "gfx")) text.remove_prefix(3);
    return text == "910" ? "90a" : std::string(text);
  }

  void read_link(const pugi::xml_node& node, FoundGpu& gpu) {
    if (!is(node, "nvlink") && !is(node, "xgmi")) return;
    FoundLink link;
    link.target = lower(node.attribute("target").value());
    link.count = number(node, "count", 0, kMostLinks, 1);
    const std::string type = lower(node.attribute("tclass").value());
    const bool to_gpu =
        type.empty() ? is(node, "xgmi") : starts_with(type, "0x03") || starts_with(type, "0x12");
    link.to = to_gpu ? FoundLink::To::kGpu : FoundLink::To::kSwitch;
    if (starts_with(type, "0x068001") || link.count == 0) return;  // to a processor
    if (link.target == gpu.bus) {
      diagnostics_.warning(where(node), fmt::format("GPU {} has a link to itself, which does not "
                                                    "count",
                                                    gpu.bus));
      return;
    }
    gpu.links.push_back(std::move(link));
  }

  // NCCL names a NIC as the verbs do, or else as the network interface.
  static bool is_rdma_name(const std::string& name) {
    constexpr std::string_view kVerbs[] = {"mlx",   "bnxt_re", "irdma", "hfi",
                                           "rdmap", "efa",     "ionic"};
    return std::any_of(std::begin(kVerbs), std::end(kVerbs),
                       [&](std::string_view start) { return starts_with(name, start); });
  }

  void read_nic(const pugi::xml_node& nic, bool infiniband) {
    for (const pugi::xml_node& net : nic.children("net")) {
      FoundNic found;
      found.name = net.attribute("name").value();
      found.infiniband = infiniband;
      found.rdma = infiniband || is_rdma_name(found.name);
      const int megabits = number(net, "speed", 0, std::numeric_limits<int>::max(), 0);
      found.bandwidth = megabits * 1e6 / 8;
      // A port may be listed again, for a further plugin.
      const std::string guid = net.attribute("guid").value();
      const bool says_which = guid.find_first_not_of("0x") != std::string::npos;
      if (says_which &&
          !ports_.insert(fmt::format("{} {} {}", host_, guid, net.attribute("port").value()))
               .second) {
        continue;
      }
      hosts[host_].nics.push_back(std::move(found));
    }
  }

  // A NIC of which the file has the PCI device alone.
  void read_silent_nic(const pugi::xml_node& pci, const std::string& type) {
    if (marked_) return;  // NCCL did not use it
    hosts[host_].nics.push_back(
        {lower(pci.attribute("busid").value()), starts_with(type, "0x0207"), true, 0});
  }

  void finish(const pugi::xml_node& root) {
    hosts.erase(std::remove_if(hosts.begin(), hosts.end(),
                               [](const FoundHost& host) { return host.gpus.empty(); }),
                hosts.end());
    if (hosts.empty() && diagnostics_.ok()) {
      diagnostics_.error(where(root), "the file has no GPU",
                         "a file of NCCL has <gpu> below its <pci>, or <pci> of class 0x030200");
    }
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      hosts[i].name = hosts.size() == 1 ? "host" : fmt::format("host-{}", i);
      // PCI devices of a file without <gpu> have no numbers, and stay in its order.
      std::stable_sort(hosts[i].gpus.begin(), hosts[i].gpus.end(),
                       [](const FoundGpu& a, const FoundGpu& b) { return a.index < b.index; });
    }
  }

  const std::string_view text_;
  Diagnostics& diagnostics_;
  std::map<std::string, std::size_t> hosts_;  // by host_hash
  std::set<std::pair<std::size_t, int>> numbers_;
  std::set<std::string> ports_;
  std::size_t host_ = 0;
  bool marked_ = false, too_deep_ = false;
};

}  // namespace

Result<NcclTopology> parse_nccl_topology(std::string_view text, const std::string& file) {
  Diagnostics diagnostics(file, std::string(text));
  pugi::xml_document document;
  const pugi::xml_parse_result parsed = document.load_buffer(
      text.data(), text.size(), pugi::parse_default | pugi::parse_doctype, pugi::encoding_utf8);
  if (!parsed && parsed.status != pugi::status_no_document_element) {
    diagnostics.error(place_of(text, std::min<std::ptrdiff_t>(
                                         parsed.offset, static_cast<std::ptrdiff_t>(text.size()))),
                      fmt::format("it is not XML: {}", lower(parsed.description())));
    return diagnostics.status();
  }
  TopologyReader reader(text, diagnostics);
  reader.read(document);
  AGPCS_RETURN_IF_ERROR(diagnostics.status());
  return NcclTopology{std::move(reader.hosts), diagnostics.warnings()};
}

Result<NcclTopology> read_nccl_topology(const std::string& path) {
  AGPCS_TRY(const std::string text, read_file(path, kTopologyFile));
  return parse_nccl_topology(text, path);
}

}  // namespace agpcs
