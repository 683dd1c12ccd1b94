// SPDX-License-Identifier: Apache-2.0
#include "tools/allreduce/result.h"

#include "cost_model/flows/time.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

Status wrong(const AllreduceResult& result, std::string_view what) {
  return internal_error(fmt::format("method '{}' made a wrong schedule: {}", result.method, what));
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

RoundsBound lower_bound_of(const Topology& topology, int max_sub_chunks, bool barrier) {
  RoundsBound result;
  result.bound = flow_bound(topology);
  const auto rounds = [&](int k) {
    return barrier ? result.bound.rounds(k) : std::ceil(result.bound.overlapped * k - 1e-9) / k;
  };
  result.rounds = rounds(1);
  for (int k = 2; k <= max_sub_chunks; ++k) result.rounds = std::min(result.rounds, rounds(k));
  return result;
}

Result<AllreduceResult> schedule_by(const FlowMethod& method, const Topology& topology,
                                    const FlowOptions& options) {
  AllreduceResult result;
  result.method = method.name;
  const auto begin = std::chrono::steady_clock::now();
  AGPCS_TRY(result.schedule, method.schedule(topology, options));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  result.planning_seconds = took.count();
  if (const Status status = check_result(topology, result); !status.ok()) {
    return wrong(result, status.message());
  }
  const FlowSchedule& schedule = result.schedule;
  if (options.barrier && !has_barrier(schedule)) {
    return wrong(result, fmt::format("the all-gather begins in round {}, the reduce-scatter ends "
                                     "in round {}",
                                     schedule.all_gather.front().round,
                                     schedule.reduce_scatter.back().round));
  }
  return result;
}

Status check_result(const Topology& topology, AllreduceResult& result) {
  AGPCS_RETURN_IF_ERROR(verify_schedule(topology, result.schedule));
  result.sums_checked = topology.servers <= kMostCheckedServers;
  return result.sums_checked ? check_sums(result.schedule, 1) : Status();
}

bool has_barrier(const FlowSchedule& schedule) {
  return schedule.reduce_scatter.empty() || schedule.all_gather.empty() ||
         schedule.all_gather.front().round > schedule.reduce_scatter.back().round;
}

double gap_of(const AllreduceResult& result, const RoundsBound& bound) {
  return bound.rounds > 0 ? result.schedule.rounds() / bound.rounds - 1 : 0;
}

LinkUse link_use(const AllreduceInput& input, const FlowSchedule& schedule, std::int64_t bytes,
                 double seconds) {
  std::vector<double> loads(input.links.size(), 0);
  for (const auto* phase : {&schedule.reduce_scatter, &schedule.all_gather}) {
    for (const Workload& w : *phase) {
      const FlowRoute& route = schedule.routes[static_cast<std::size_t>(w.route)];
      for (const int link : route.links) ++loads[static_cast<std::size_t>(link)];
    }
  }
  LinkUse use;
  const double rounds = static_cast<double>(schedule.sub_rounds());
  const double each = static_cast<double>(message_bytes(schedule, bytes));
  for (std::size_t l = 0; l < loads.size(); ++l) {
    const double capacity = static_cast<double>(input.topology.links[l].capacity);
    use.in_rounds.push_back(loads[l] / (capacity * rounds));
    use.in_time.push_back(loads[l] * each / (input.links[l].bandwidth * seconds));
  }
  use.mean_in_rounds = mean(use.in_rounds);
  use.mean_in_time = mean(use.in_time);
  return use;
}

}  // namespace agpcs
