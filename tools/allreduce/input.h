// SPDX-License-Identifier: Apache-2.0
// Reads what agpcs-allreduce schedules on: a topology by its specification, or a cluster file's
// devices.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/cluster/topology.h"

#include <agpcs/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct AllreduceInput {
  Topology topology;
  std::vector<Link> links;  ///< bandwidth and latency of each link of the topology
  bool is_cluster = false;
  std::string warnings;  ///< ready to print; empty if there are none
};

/// The figures of a topology's links. A cluster has its own figures.
struct LinkFigures {
  std::optional<double> bandwidth;  ///< bytes/s per unit of capacity
  std::optional<double> latency;    ///< seconds
};
inline constexpr double kDefaultLinkBandwidth = 1.25e9;  // 10 Gbit/s
inline constexpr double kDefaultLinkLatency = 5e-6;

/// Tells whether `text` names a file: it ends with .yaml or .yml, or has a slash.
bool names_cluster_file(std::string_view text);

/// Reads the topology or the cluster file that `text` names. Errors: those of `make_topology` and
/// of cluster files (kInvalidInput); a cluster of one device; figures given for a cluster (kUsage).
Result<AllreduceInput> read_allreduce_input(const std::string& text, const LinkFigures& figures);

/// Parses the value of an option: "100MB", "10Gbit/s", "5us". Errors: kUsage.
Result<std::int64_t> parse_bytes_option(const std::string& option, const std::string& text);
Result<LinkFigures> parse_link_figures(const std::string& bandwidth, const std::string& latency);

}  // namespace agpcs
