// SPDX-License-Identifier: Apache-2.0
// Ways to schedule an all-reduce on a topology, in one table. agpcs-allreduce's --method and
// --compare and the benchmarks read it.
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/cluster/topology.h"

#include <agpcs/status.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

namespace agpcs {

struct FlowOptions {
  std::uint64_t seed = 0;
  int max_sub_chunks = 2;  ///< K is at most this
  /// Searches take about this many times as long as usual; 0: only what takes almost no time.
  std::int64_t effort = 1;
  bool barrier = true;  ///< all-gather only after the whole reduce-scatter
  const std::atomic<bool>* interrupted = nullptr;  ///< a search ends with the best so far
};

/// A method. Its schedules are valid under `verify_schedule`. Same topology and options, same
/// schedule. Errors (kInfeasible): the method does not apply to this topology; the message says
/// why.
struct FlowMethod {
  std::string_view name;  ///< the one spelling: flag, table, JSON
  std::string_view help;
  Result<FlowSchedule> (*schedule)(const Topology& topology, const FlowOptions& options);
};
/// Returns parameter_server, ring, hamiltonian, greedy, trees, policy, search. The last is the
/// default.
std::span<const FlowMethod> flow_methods();
/// Returns the method of that name. Errors (kUsage): no such name (did you mean).
Result<const FlowMethod*> find_flow_method(std::string_view name);

}  // namespace agpcs
