// SPDX-License-Identifier: Apache-2.0
// What agpcs-allreduce schedules on: a topology by its specification, or a cluster file's devices.
#pragma once

#include "ir/cluster.h"
#include "ir/topology.h"

#include <agpcs/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct AllreduceInput {
  Topology topology;
  std::vector<Link> links;  ///< by the topology's link: its bandwidth and latency
  bool is_cluster = false;
  std::string warnings;  ///< ready to print, empty when none
};

/// Figures of a topology's links; a cluster has its own.
struct LinkFigures {
  std::optional<double> bandwidth;  ///< bytes/s of a unit of capacity
  std::optional<double> latency;    ///< seconds
};
inline constexpr double kDefaultLinkBandwidth = 1.25e9;  // 10 Gbit/s
inline constexpr double kDefaultLinkLatency = 5e-6;

/// Whether `text` names a file: it ends with .yaml or .yml, or has a slash.
bool names_cluster_file(std::string_view text);

/// Errors: those of `make_topology` and of cluster files (kInvalidInput); a cluster of one device;
/// figures for a cluster (kUsage).
Result<AllreduceInput> read_allreduce_input(const std::string& text, const LinkFigures& figures);

/// "100MB", "10Gbit/s", "5us" for an option. Errors: kUsage.
Result<std::int64_t> parse_bytes_option(const std::string& option, const std::string& text);
Result<LinkFigures> parse_link_figures(const std::string& bandwidth, const std::string& latency);

}  // namespace agpcs
