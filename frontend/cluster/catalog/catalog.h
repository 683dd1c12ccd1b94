// SPDX-License-Identifier: Apache-2.0
// The catalog: accelerators and networks that cluster.yaml may call by name, each figure with its
// source. Its data are catalog.yaml beside this file, which the commands hold.
#pragma once

#include "ir/base/diagnostics.h"

#include <agpcs/status.h>

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct CatalogSource {
  std::string name;  ///< "v100-datasheet"
  std::string text;  ///< publisher, title, year, address
};

/// A figure as the catalog has it: "peak fp32", "15.7TFLOPS", "v100-datasheet".
struct CatalogFigure {
  std::string key, text, source;
};

/// A figure that is 0, empty or absent has no source that states it.
struct AcceleratorKind {
  std::string name, architecture, note;
  std::vector<CatalogFigure> figures;  ///< its own in the catalog's order, then its architecture's

  double memory = 0;  ///< bytes
  std::string memory_type;
  double memory_bandwidth = 0;         ///< bytes/s
  std::map<std::string, double> peak;  ///< FLOP/s by precision: dense, accumulating in fp32
  double processors = 0;
  std::map<std::string, double>
      lanes;                          ///< fused multiply-adds a clock of a processor, by precision
  double boost_clock = 0;             ///< Hz
  double board_power = 0;             ///< W
  std::string process;                ///< "TSMC 12FFN"
  double l1_cache = 0;                ///< bytes of each processor
  double l2_cache = 0, l3_cache = 0;  ///< bytes of the device
  /// Bytes that its memory moves for each byte that it sends or receives; 0: none are known.
  double message_traffic = 0;
  std::vector<std::string> links;  ///< names of networks
};

/// The costs of NCCL's collectives by the protocols LL, LL128 and Simple, on a kind of network.
struct ProtocolKind {
  std::string name, note;
  std::vector<CatalogFigure> figures;
  double ll_start = 0, ll128_start = 0, simple_start = 0;        ///< seconds of a collective
  double ll_latency = 0, ll128_latency = 0, simple_latency = 0;  ///< seconds of a message
  double ll_rate = 0, ll128_rate = 0;  ///< part of Simple's bandwidth; 0: it is not used
  double ll128_expected = 0;           ///< the same, as NCCL expects it when it chooses
  double launch = 0, step = 0;         ///< seconds beyond NCCL's model: of a collective, of a step
};

struct NetworkKind {
  std::string name, note;
  std::string kind;       ///< its class: nvlink, xgmi, pcie, ib or ethernet
  std::string protocols;  ///< name of a ProtocolKind; empty: none
  std::vector<CatalogFigure> figures;
  double bandwidth = 0;   ///< bytes/s in each direction, of a device's port or of a NIC
  double latency = -1;    ///< seconds, end to end; negative: the catalog has none
  double efficiency = 1;  ///< the part of the bandwidth that large messages get
};

struct Catalog {
  std::vector<CatalogSource> sources;         ///< in the catalog's order
  std::vector<AcceleratorKind> accelerators;  ///< in the catalog's order
  std::vector<NetworkKind> networks;
  std::vector<ProtocolKind> protocols;

  const AcceleratorKind* find_accelerator(std::string_view name) const;  ///< nullptr: unknown
  const NetworkKind* find_network(std::string_view name) const;
  const ProtocolKind* find_protocols(std::string_view name) const;
  const CatalogSource* find_source(std::string_view name) const;
  std::vector<std::string> accelerator_names() const;
  std::vector<std::string> network_names() const;
};

/// Reads a catalog and checks it: units and ranges; that every figure stands below a source that is
/// listed, and every source is used; repeated names and figures; that links are networks, and their
/// protocols protocols; and that a peak is what lanes, processors and clock give. It reports all
/// errors at once. `file` is the name used in messages.
Result<Catalog> parse_catalog(std::string_view text, const std::string& file);

/// Returns the text of catalog.yaml.
std::string_view catalog_text();
/// Returns the catalog of this program.
const Catalog& catalog();

/// Tells whether `name` contains `word`, for people: letter case, '-', '_', '.' and blanks do not
/// count.
bool resembles(std::string_view name, std::string_view word);

/// Returns "did you mean 'T4'?" for the names that resemble `word`, or for the nearest one; empty
/// if there is none. Of more names than four it says which command lists them.
std::string did_you_mean_of_catalog(std::string_view word, const std::vector<std::string>& names);

}  // namespace agpcs
