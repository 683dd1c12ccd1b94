// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/plausible.h"

#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/yaml.h"
#include "ir/base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr FileKind kCheckedFile = {"cluster file", "docs/reference/cluster_yaml.md"};
// Figures of vendors are rounded, and boards differ in their clocks.
constexpr double kMostOverNominal = 1.05;
// NICs of a host that a file may have as one: DGX H100 and its like have 8 of 400 Gbit/s for GPUs.
constexpr double kMostNics = 16;

/// Latencies end to end that links have: from the fastest known to what only a fault explains.
struct LatencyRange {
  double least, most;
};
constexpr LatencyRange kWithinHost = {0.3e-6, 200e-6};
constexpr LatencyRange kBetweenHosts = {0.5e-6, 50e-3};
constexpr LatencyRange kLaunch = {0.1e-6, 1e-3};

bool eightfold(double ratio) { return ratio > 7 && ratio < 9; }

/// Figures that an accelerator cannot exceed. Of several candidates, the largest.
struct Board {
  std::string name;  // of the one, or the word that all their names contain
  std::vector<const AcceleratorKind*> kinds;

  template <typename Figure>
  double most(Figure figure) const {
    double value = 0;
    for (const AcceleratorKind* kind : kinds) value = std::max(value, figure(*kind));
    return value;
  }
  double memory() const {
    return most([](const AcceleratorKind& a) { return a.memory; });
  }
  double memory_bandwidth() const {
    return most([](const AcceleratorKind& a) { return a.memory_bandwidth; });
  }
  double peak(const std::string& precision) const {
    return most([&](const AcceleratorKind& a) {
      const auto found = a.peak.find(precision);
      return found == a.peak.end() ? 0 : found->second;
    });
  }
  /// Returns its fastest link of a class; 0: none.
  double link(const std::string& kind) const {
    return most([&](const AcceleratorKind& a) {
      double fastest = 0;
      for (const std::string& link : a.links) {
        const NetworkKind* const network = catalog().find_network(link);
        if (network != nullptr && network->kind == kind) {
          fastest = std::max(fastest, network->bandwidth);
        }
      }
      return fastest;
    });
  }
};

std::string text_of(const YAML::Node& node) { return node.IsScalar() ? node.Scalar() : ""; }

class PlausibilityChecker {
 public:
  explicit PlausibilityChecker(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  void check(const YAML::Node& root) {
    if (root["device_kinds"] && root["device_kinds"].IsMap()) {
      kinds_.emplace(root["device_kinds"]);
      for (const auto& entry : *kinds_) check_kind(entry.first, entry.second);
    }
    for (const YAML::Node& host : root["hosts"]) check_host(host);
    const YAML::Node network = root["network"];
    if (!network || !network.IsMap()) return;
    if (network["links"]) {
      for (const YAML::Node& link : network["links"]) check_link(link, "a link", true, nullptr);
    } else {
      check_link(network, "the network", true, nullptr);
    }
  }

 private:
  std::optional<double> value(const YAML::Node& map, const char* key, QuantityKind kind) const {
    if (!map.IsMap() || !map[key] || !map[key].IsScalar()) return std::nullopt;
    const ParsedQuantity parsed = parse_quantity(map[key].Scalar(), kind);
    return parsed.error.empty() ? std::optional(parsed.value) : std::nullopt;
  }

  void report(const YAML::Node& node, const std::string& what, const std::string& hint) {
    diagnostics_.error(range_of(node), what, hint);
  }

  /// Returns the accelerator that a kind is, or those whose names contain its name.
  Board board_of(const std::string& name) const {
    std::string hardware = name;
    if (kinds_) {
      const YAML::Node kind = std::as_const(*kinds_)[name];
      if (kind && kind.IsMap() && kind["hardware"]) hardware = text_of(kind["hardware"]);
    }
    Board board = {hardware, {}};
    if (const AcceleratorKind* const one = catalog().find_accelerator(hardware)) {
      board.kinds.push_back(one);
      return board;
    }
    const bool has_digit = name.find_first_of("0123456789") != std::string::npos;
    if (name.size() < 2 || !has_digit) return board;  // "a" and "gpu" name no accelerator
    for (const AcceleratorKind& one : catalog().accelerators) {
      if (resembles(one.name, name)) board.kinds.push_back(&one);
    }
    return board;
  }

  void check_kind(const YAML::Node& key, const YAML::Node& node) {
    if (!node.IsMap()) return;
    const std::string of = fmt::format("device kind '{}'", text_of(key));
    const Board board = board_of(text_of(key));
    check_figure(node, "memory", QuantityKind::kBytes, of, board.name, board.memory());
    check_figure(node, "memory_bandwidth", QuantityKind::kBytesPerSecond, of, board.name,
                 board.memory_bandwidth());
    const YAML::Node peak = node["peak"];
    if (peak && peak.IsMap()) {
      for (const auto& entry : peak) check_peak(peak, text_of(entry.first), of, board);
      check_order(peak, of);
    }
    check_latency(node, "launch_overhead", of, kLaunch);
  }

  void check_figure(const YAML::Node& map, const char* key, QuantityKind kind,
                    const std::string& of, const std::string& board, double most) {
    const std::optional<double> found = value(map, key, kind);
    if (!found || most <= 0) return;
    const double ratio = *found / most;
    const std::string what = fmt::format("'{}' of {} is {}, {} has {}", key, of, text_of(map[key]),
                                         board, figure_text(most, kind));
    if (eightfold(ratio) || eightfold(1 / ratio)) {
      report(map[key], what, "that is a factor of 8: are these bits, or bytes?");
    } else if (ratio > kMostOverNominal) {
      report(map[key], what,
             "agpcs-plan kinds shows the board's figures; leave the key out to take them");
    } else if (ratio < 1.0 / 64) {
      report(map[key], what, "is the unit right?");
    }
  }

  static std::string figure_text(double value, QuantityKind kind) {
    switch (kind) {
      case QuantityKind::kBytes:
        return fmt::format("{:.4g}GiB", value / 0x1p30);
      case QuantityKind::kFlops:
        return fmt::format("{:.4g}TFLOPS", value / 1e12);
      default:
        return fmt::format("{:.5g}GB/s", value / 1e9);
    }
  }

  void check_peak(const YAML::Node& peak, const std::string& precision, const std::string& of,
                  const Board& board) {
    const std::optional<double> found = value(peak, precision.c_str(), QuantityKind::kFlops);
    const double most = board.peak(precision);
    if (!found || most <= 0) return;
    const double ratio = *found / most;
    if (ratio <= kMostOverNominal && ratio >= 1.0 / 64) return;
    report(
        peak[precision],
        fmt::format("the {} peak of {} is {}, {} has {}", precision, of, text_of(peak[precision]),
                    board.name, figure_text(most, QuantityKind::kFlops)),
        ratio > 1.9 && ratio < 2.1
            ? "it is twice that with sparsity, or accumulating in fp16: neither is what counts here"
            : "a peak is dense and accumulates in fp32; is the unit right?");
  }

  // A lower precision is never slower than a higher one.
  void check_order(const YAML::Node& peak, const std::string& of) {
    for (const auto& [high, low] : {std::pair("fp32", "tf32"),
                                    {"tf32", "fp16"},
                                    {"tf32", "bf16"},
                                    {"fp32", "fp16"},
                                    {"fp32", "bf16"}}) {
      const auto slower = value(peak, high, QuantityKind::kFlops);
      const auto faster = value(peak, low, QuantityKind::kFlops);
      if (!slower || !faster || *slower <= 1.01 * *faster) continue;
      report(peak[low],
             fmt::format("{} is slower in {} ({}) than in {} ({})", of, low, text_of(peak[low]),
                         high, text_of(peak[high])),
             "a lower precision is at least as fast; is one of them of another board?");
    }
  }

  void check_latency(const YAML::Node& map, const char* key, const std::string& of,
                     const LatencyRange& range) {
    const std::optional<double> found = value(map, key, QuantityKind::kSeconds);
    if (!found || (*found >= range.least && *found <= range.most)) return;
    report(map[key],
           fmt::format("'{}' of {} is {}, from {:g}us to {:g}us are plausible", key, of,
                       text_of(map[key]), range.least * 1e6, range.most * 1e6),
           "is the unit right? a latency is of a small message, end to end");
  }

  void check_host(const YAML::Node& host) {
    const std::string name = fmt::format("host '{}'", text_of(host["name"]));
    std::vector<Board> boards;
    const YAML::Node devices = host["devices"];
    if (devices.IsMap()) boards.push_back(board_of(text_of(devices["kind"])));
    if (devices.IsSequence()) {
      for (const YAML::Node& group : devices) boards.push_back(board_of(text_of(group["kind"])));
    }
    if (host["interconnect"]) {
      check_link(host["interconnect"], "the interconnect of " + name, false, &boards);
    }
    if (host["nic"]) check_link(host["nic"], "the nic of " + name, true, nullptr);
  }

  /// Checks a link. `between`: hosts, else devices of a host, whose boards are `boards`.
  void check_link(const YAML::Node& node, const std::string& of, bool between,
                  const std::vector<Board>* boards) {
    const YAML::Node kind_node = node.IsMap() ? node["kind"] : node;
    const std::string kind = kind_node && kind_node.IsScalar() ? kind_node.Scalar()
                             : between                         ? "ethernet"
                                                               : "pcie";
    const NetworkKind* const named = catalog().find_network(kind);
    const std::string link_class = named != nullptr ? named->kind : kind;
    const YAML::Node& place = kind_node && kind_node.IsScalar() ? kind_node : node;
    if (between && (link_class == "nvlink" || link_class == "xgmi" || link_class == "pcie")) {
      report(place, fmt::format("{} is {}, which joins devices of one host", of, kind),
             "a NIC is ib or ethernet; agpcs-plan kinds lists networks by name");
    }
    double nominal = named != nullptr ? named->bandwidth : fastest_of(link_class);
    std::string limit =
        named != nullptr ? kind : fmt::format("the fastest {} of the catalog", kind);
    if (boards != nullptr) check_boards(place, of, kind, link_class, *boards, nominal, limit);
    if (node.IsMap()) {
      check_bandwidth(node, of, nominal, limit, named == nullptr && between);
      check_latency(node, "latency", of, between ? kBetweenHosts : kWithinHost);
    }
  }

  static double fastest_of(const std::string& link_class) {
    double fastest = 0;
    for (const NetworkKind& network : catalog().networks) {
      // The ports of one accelerator together are no NIC.
      if (network.kind != link_class || network.name == "gaudi2-mesh") continue;
      fastest = std::max(fastest, network.bandwidth);
    }
    return fastest;
  }

  // Compares an interconnect with the links that the host's accelerators have.
  void check_boards(const YAML::Node& place, const std::string& of, const std::string& kind,
                    const std::string& link_class, const std::vector<Board>& boards,
                    double& nominal, std::string& limit) {
    if (link_class != "nvlink" && link_class != "xgmi" && link_class != "pcie") return;
    for (const Board& board : boards) {
      if (board.kinds.empty() || link_class == "xgmi") continue;  // of AMD not all links are listed
      const double most = board.link(link_class);
      if (most == 0) {
        report(place, fmt::format("{} is {}, and {} has no {}", of, kind, board.name, link_class),
               "agpcs-plan kinds shows the links of an accelerator");
      } else if (most < nominal * 0.99) {
        if (catalog().find_network(kind) != nullptr && link_class == "nvlink") {
          report(place,
                 fmt::format("{} is {} of {}, {} has {} at most", of, kind,
                             figure_text(nominal, QuantityKind::kBytesPerSecond), board.name,
                             figure_text(most, QuantityKind::kBytesPerSecond)),
                 "agpcs-plan kinds shows the links of an accelerator");
        }
        nominal = most;
        limit = board.name;
      }
    }
  }

  /// `several`: the bandwidth may be that of several NICs, in bits.
  void check_bandwidth(const YAML::Node& node, const std::string& of, double nominal,
                       const std::string& limit, bool several) {
    const std::optional<double> found = value(node, "bandwidth", QuantityKind::kBytesPerSecond);
    if (!found || nominal <= 0) return;
    const YAML::Node& place = node["bandwidth"];
    const std::string text = text_of(place);
    const bool in_bits = text.find("bit") != std::string::npos;
    const double most = several && in_bits ? kMostNics * nominal : kMostOverNominal * nominal;
    const bool by_name = !several;
    const double ratio = *found / nominal;
    const bool low = by_name && eightfold(1 / ratio);
    if (*found <= most && !low) return;
    std::string hint =
        low || eightfold(ratio)
            ? "that is a factor of 8: are these bits, or bytes?"
            : "a bandwidth is per direction, of one device's port or of the host's NICs";
    if (several && !in_bits)
      hint = "are these bits? if they are several NICs together, say it in Gbit/s";
    report(place,
           fmt::format("'bandwidth' of {} is {}, {} has {} ({:g}Gbit/s)", of, text, limit,
                       figure_text(nominal, QuantityKind::kBytesPerSecond), nominal * 8 / 1e9),
           hint);
  }

  Diagnostics& diagnostics_;
  std::optional<YAML::Node> kinds_;  // absent: all kinds are of the catalog
};

/// Reads the file in the first precision in which every kind has a peak: the model's is not known.
Result<ClusterFile> read_in_some_precision(std::string_view text, const std::string& file,
                                           const ReadProfile& read) {
  Result<ClusterFile> first = parse_cluster(text, file, read);
  if (first.ok()) return first;
  for (const Precision precision : {Precision::kTf32, Precision::kFp16, Precision::kBf16}) {
    Result<ClusterFile> next = parse_cluster(text, file, read, [&] { return precision; });
    if (next.ok()) return next;
  }
  return first;
}

}  // namespace

Result<PlausibleCluster> check_plausible(std::string_view text, const std::string& file,
                                         const ReadProfile& read) {
  AGPCS_TRY(const ClusterFile cluster, read_in_some_precision(text, file, read));
  const std::string source(text);
  Diagnostics diagnostics(file, source);
  try {
    if (const auto root = load_yaml(source, kCheckedFile, diagnostics)) {
      PlausibilityChecker(diagnostics).check(*root);
    }
  } catch (const YAML::Exception& exception) {
    return internal_error(fmt::format("{}: yaml-cpp: {}", file, exception.what()));
  }
  AGPCS_RETURN_IF_ERROR(diagnostics.status());
  const Cluster& read_cluster = cluster.cluster;
  return PlausibleCluster{read_cluster.name, static_cast<int>(read_cluster.kinds.size()),
                          read_cluster.device_count(), static_cast<int>(read_cluster.hosts.size()),
                          cluster.warnings};
}

}  // namespace agpcs
