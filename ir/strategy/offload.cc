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

double copy_seconds(std::int64_t bytes, const HostLink& link) {
  return bytes == 0 ? 0 : link.latency + static_cast<double>(bytes) / link.bandwidth;
}

std::vector<double> copies_of(const std::vector<std::int64_t>& bytes, const HostLink& link) {
  std::vector<double> seconds;
  seconds.reserve(bytes.size());
  for (const std::int64_t one : bytes) seconds.push_back(copy_seconds(one, link));
  return seconds;
}

bool can_offload(const Cluster& cluster, const Training& training) {
  return state_bytes(training) > 0 && can_offload(cluster);
}

bool can_offload(const Cluster& cluster) {
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

std::string why_not_activations(const Strategy& strategy, std::size_t stage,
                                const Cluster& cluster) {
  if (strategy.schedule == Schedule::kZeroBubble) {
    return fmt::format("the schedule is {}", name_of(strategy.schedule));
  }
  if (strategy.stages[stage].state == StateLevel::kParameters) {
    return fmt::format("stage {} divides parameters", stage);
  }
  return why_not_offload(strategy, stage, cluster);
}

Status check_offload(const Strategy& strategy, const Cluster& cluster) {
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const StageSpec& spec = strategy.stages[s];
    const auto check = [&](bool has, std::string_view what, auto why_not) -> Status {
      const std::string why = has ? why_not(strategy, s, cluster) : "";
      if (why.empty()) return {};
      return internal_error(fmt::format(
          "strategy: stage {} has its {} in the memory of hosts, but {}", s, what, why));
    };
    AGPCS_RETURN_IF_ERROR(check(spec.state_in_host, "state", why_not_offload));
    AGPCS_RETURN_IF_ERROR(check(spec.recompute.in_host, "activations", why_not_activations));
  }
  return {};
}

void fit_offload(Strategy& strategy, const Cluster& cluster) {
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    StageSpec& spec = strategy.stages[s];
    if (spec.state_in_host && !why_not_offload(strategy, s, cluster).empty()) {
      spec.state_in_host = false;
    }
    if (spec.recompute.in_host && !why_not_activations(strategy, s, cluster).empty()) {
      spec.recompute.in_host = false;
      spec.recompute.again = true;
    }
  }
}

namespace {

/// Returns what a rank keeps in the memory of its host, and the keys that say so.
std::pair<std::string_view, std::string_view> kept_in_host(const Plan& plan, std::size_t rank) {
  const PlanStage& stage =
      plan.stages[static_cast<std::size_t>(plan.stage_of_rank(static_cast<int>(rank)))];
  if (!stage.activations_in_host) return {"the optimizer's state", "state-in=host"};
  if (!stage.state_in_host) return {"activations", "activations-in=host"};
  return {"the optimizer's state and activations", "state-in=host and activations-in=host"};
}

}  // namespace

Status check_host_memory(const Plan& plan, const std::vector<MemoryUse>& uses,
                         const Cluster& cluster) {
  const std::vector<std::string> names = devices_of_ranks(plan);
  std::map<std::string_view, std::pair<std::int64_t, std::vector<std::size_t>>> needs;  // by host
  std::vector<const Host*> hosts;
  for (std::size_t rank = 0; rank < uses.size(); ++rank) {
    if (uses[rank].host == 0) continue;
    const DeviceId device = cluster.find_device(names[rank]);
    if (!has_link(cluster, device)) {
      const auto [what, keys] = kept_in_host(plan, rank);
      return invalid_input(fmt::format(
          "plan: error: rank {} keeps {} in the memory of its host, but device '{}' has no "
          "host_link\n"
          "  hint: give its kind '{}' a host_link in cluster.yaml, or leave out {}",
          rank, what, names[rank], cluster.kind_of(device).name, keys));
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
        "{}host {} lacks {}: it has {} for {} of ranks {}, which needs {}\n"
        "  hint: 'memory' of the host in cluster.yaml says how much there is",
        text.empty() ? "" : "\n", host->name, byte_figure(bytes - host->memory_bytes),
        byte_figure(host->memory_bytes), kept_in_host(plan, ranks.front()).first,
        fmt::join(ranks, ","), byte_figure(bytes));
  }
  return text.empty() ? Status() : Status(StatusCode::kInfeasible, std::move(text));
}

}  // namespace agpcs
