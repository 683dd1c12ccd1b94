// SPDX-License-Identifier: Apache-2.0
#include "tools/allreduce/input.h"

#include "cost_model/flows/time.h"
#include "cost_model/network/topology_of_cluster.h"
#include "frontend/cluster/units.h"
#include "tools/common/calibrated_cluster.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr double kMostBytes = 1e15;
constexpr int kMostDevices = 4'096;  // in a cluster

Result<AllreduceInput> read_cluster_input(const std::string& path, const LinkFigures& figures) {
  if (figures.bandwidth || figures.latency) {
    return Status(StatusCode::kUsage,
                  fmt::format("--{} is for topologies; '{}' has figures of its own",
                              figures.bandwidth ? "bandwidth" : "latency", path));
  }
  AGPCS_TRY(CalibratedCluster calibrated, read_calibrated_cluster(path));
  const Cluster& cluster = calibrated.file.cluster;
  if (cluster.device_count() < 2) {
    return invalid_input(
        fmt::format("{}: error: {} device\n  hint: an all-reduce is between two or more", path,
                    cluster.device_count()));
  }
  if (cluster.device_count() > kMostDevices) {
    return invalid_input(
        fmt::format("{}: error: {} devices; flows are scheduled between at most "
                    "{}\n  hint: every pair of devices has a route of its own",
                    path, cluster.device_count(), kMostDevices));
  }
  std::vector<DeviceId> devices(static_cast<std::size_t>(cluster.device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  ClusterTopology found = topology_of(cluster, devices);
  AGPCS_RETURN_IF_ERROR(verify_topology(found.topology));
  AllreduceInput input;
  input.links = links_of(cluster, found);
  input.topology = std::move(found.topology);
  input.is_cluster = true;
  input.warnings = std::move(calibrated.file.warnings);
  return input;
}

Result<double> parse_option(const std::string& option, const std::string& text,
                            QuantityKind quantity, bool zero) {
  const ParsedQuantity parsed = parse_quantity(text, quantity);
  if (!parsed.error.empty()) {
    return Status(StatusCode::kUsage,
                  fmt::format("{}: {}{}{}", option, parsed.error,
                              parsed.hint.empty() ? "" : "\n  hint: ", parsed.hint));
  }
  if (parsed.value > 0 || (zero && parsed.value == 0)) return parsed.value;
  return Status(StatusCode::kUsage,
                fmt::format("{} must {}, is '{}'", option,
                            zero ? "not be negative" : "be more than zero", text));
}

}  // namespace

bool names_cluster_file(std::string_view text) {
  return has_ending(text, ".yaml") || has_ending(text, ".yml") ||
         text.find('/') != std::string_view::npos;
}

Result<AllreduceInput> read_allreduce_input(const std::string& text, const LinkFigures& figures) {
  if (names_cluster_file(text)) return read_cluster_input(text, figures);
  AllreduceInput input;
  AGPCS_TRY(input.topology, make_topology(text));
  input.links = links_of(input.topology, figures.bandwidth.value_or(kDefaultLinkBandwidth),
                         figures.latency.value_or(kDefaultLinkLatency));
  return input;
}

Result<std::int64_t> parse_bytes_option(const std::string& option, const std::string& text) {
  AGPCS_TRY(const double bytes, parse_option(option, text, QuantityKind::kBytes, false));
  if (bytes >= 1 && bytes <= kMostBytes) return std::llround(bytes);
  return Status(StatusCode::kUsage,
                fmt::format("{} must be from 1B to 1000TB, is '{}'", option, text));
}

Result<LinkFigures> parse_link_figures(const std::string& bandwidth, const std::string& latency) {
  LinkFigures figures;
  if (!bandwidth.empty()) {
    AGPCS_TRY(figures.bandwidth,
              parse_option("--bandwidth", bandwidth, QuantityKind::kBytesPerSecond, false));
  }
  if (!latency.empty()) {
    AGPCS_TRY(figures.latency, parse_option("--latency", latency, QuantityKind::kSeconds, true));
  }
  return figures;
}

}  // namespace agpcs
