// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/offload.h"

#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/state_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace agpcs {

void move_state_to_host(const Training& training, StageMemory& memory) {
  memory.host = memory.optimizer;
  memory.optimizer =
      std::min(memory.optimizer, kOffloadWindow * kOffloadPiece * state_bytes(training));
}

double offloaded_seconds(double update, std::int64_t elements, std::int64_t bytes,
                         const HostLink& link) {
  if (elements == 0) return update;
  const auto pieces = static_cast<double>((elements + kOffloadPiece - 1) / kOffloadPiece);
  const double own = update / pieces;
  const double copy = link.latency + static_cast<double>(elements) / pieces *
                                         static_cast<double>(bytes) / link.bandwidth;
  // The first comes in, the last goes out, and between them the slower of both sets the pace: three
  // pieces in memory never hold it up, because a copy in, an update and a copy out take no longer
  // than three of the slowest.
  return 2 * copy + own + (pieces - 1) * std::max(copy, own);
}

namespace {

bool has_link(const Cluster& cluster, DeviceId device) {
  return cluster.kind_of(device).host_link.given();
}

const Host& host_of(const Cluster& cluster, DeviceId device) {
  const int host = cluster.devices[static_cast<std::size_t>(device)].host;
  return cluster.hosts[static_cast<std::size_t>(host)];
}

}  // namespace

bool can_offload(const Cluster& cluster, const Training& training) {
  if (state_bytes(training) == 0) return false;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    if (has_link(cluster, id) && host_of(cluster, id).memory_bytes > 0) return true;
  }
  return false;
}

std::string why_not_offload(const Strategy& strategy, std::size_t stage, const Cluster& cluster) {
  const StageSpec& spec = strategy.stages[stage];
  if (spec.has_teams()) return fmt::format("stage {} has teams", stage);
  if (strategy.schedule == Schedule::kInterleaved) {
    return fmt::format("the schedule is {}", name_of(strategy.schedule));
  }
  for (const DeviceId device : spec.devices) {
    if (!has_link(cluster, device)) {
      return fmt::format("device {} has no host_link", cluster.device_name(device));
    }
    const Host& host = host_of(cluster, device);
    if (host.memory_bytes == 0) return fmt::format("host {} has no memory", host.name);
  }
  return {};
}

Status check_offload(const Strategy& strategy, const Cluster& cluster) {
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    if (!strategy.stages[s].state_in_host) continue;
    const std::string why = why_not_offload(strategy, s, cluster);
    if (why.empty()) continue;
    return internal_error(
        fmt::format("strategy: stage {} has its state in the memory of hosts, but {}", s, why));
  }
  return {};
}

void fit_offload(Strategy& strategy, const Cluster& cluster) {
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    bool& in_host = strategy.stages[s].state_in_host;
    in_host = in_host && why_not_offload(strategy, s, cluster).empty();
  }
}

Status check_host_memory(const Plan& plan, const std::vector<MemoryUse>& uses,
                         const Cluster& cluster) {
  const std::vector<std::string> names = devices_of_ranks(plan);
  std::map<std::string_view, std::pair<std::int64_t, std::vector<std::size_t>>> needs;  // by host
  std::vector<const Host*> hosts;
  for (std::size_t rank = 0; rank < uses.size(); ++rank) {
    if (uses[rank].host == 0) continue;
    const DeviceId device = cluster.find_device(names[rank]);
    if (!has_link(cluster, device)) {
      return invalid_input(fmt::format(
          "plan: error: rank {} keeps the optimizer's state in the memory of its host, but device "
          "'{}' has no host_link\n"
          "  hint: give its kind '{}' a host_link in cluster.yaml, or leave out state-in=host",
          rank, names[rank], cluster.kind_of(device).name));
    }
    const Host& host = host_of(cluster, device);
    auto& [bytes, ranks] = needs[host.name];
    if (ranks.empty()) hosts.push_back(&host);
    bytes += uses[rank].host;
    ranks.push_back(rank);
  }
  std::string text;
  for (const Host* const host : hosts) {
    const auto& [bytes, ranks] = needs.at(host->name);
    if (bytes <= host->memory_bytes) continue;
    text += fmt::format(
        "{}host {} lacks {}: it has {} for the optimizer's state of ranks {}, which needs {}\n"
        "  hint: 'memory' of the host in cluster.yaml says how much there is",
        text.empty() ? "" : "\n", host->name, byte_figure(bytes - host->memory_bytes),
        byte_figure(host->memory_bytes), fmt::join(ranks, ","), byte_figure(bytes));
  }
  return text.empty() ? Status() : Status(StatusCode::kInfeasible, std::move(text));
}

}  // namespace agpcs
