// SPDX-License-Identifier: Apache-2.0
// Memory: bytes on each rank at each compute instruction of its program. One model for planner,
// verifier and report.
#pragma once

#include "ir/cluster.h"
#include "ir/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// Bytes on one rank, by what they are for, at the moment of the peak.
struct MemoryUse {
  std::int64_t parameters = 0;   ///< with master copy in half precision
  std::int64_t gradients = 0;    ///< bucket buffers, with those of a wire type
  std::int64_t optimizer = 0;    ///< momentum: 1x, adam: 2x, in fp32
  std::int64_t activations = 0;  ///< kept for backward, all micro-batches in flight
  std::int64_t transfers = 0;    ///< received activations and gradients not yet consumed
  std::int64_t workspace = 0;    ///< largest operator's temporaries
  std::int64_t total() const {
    return parameters + gradients + optimizer + activations + transfers + workspace;
  }
};

/// The operators of each stage, by OpId ascending: resolves PlanStage::operators against the graph.
/// Errors: model digest differs (names both), unknown operator, an operator in no or two stages.
Result<std::vector<std::vector<OpId>>> resolve_stages(const Plan& plan, const Graph& graph);
/// The same for a plan that is known to be for `graph`: digests, which cost more than all the rest,
/// are not compared.
Result<std::vector<std::vector<OpId>>> operators_of_stages(const Plan& plan, const Graph& graph);

/// Peak use of each rank over one step of its program. Cost: O(instructions + operators).
Result<std::vector<MemoryUse>> peak_memory(const Plan& plan, const Graph& graph);

/// Bytes on a rank during a compute instruction of its program, and from its end to the next one's
/// start.
struct MemoryStep {
  InstructionId instruction;
  std::int64_t during = 0, after = 0;
};

/// The compute instructions of each rank in program order; the largest `during` is the rank's peak.
/// Cost: that of `peak_memory`, and O(ranks x compute instructions).
Result<std::vector<std::vector<MemoryStep>>> memory_over_step(const Plan& plan, const Graph& graph);

/// `verify_plan`, then against the graph and the cluster: digests, operators, cut tensors and
/// bucket members are exactly those of the graph, devices exist, and memory fits on every rank
/// (kInfeasible: which device lacks how many bytes, and what would help).
Status verify_plan_against(const Plan& plan, const Graph& graph, const Cluster& cluster);

}  // namespace agpcs
