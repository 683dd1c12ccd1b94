// SPDX-License-Identifier: Apache-2.0
// Memory: the bytes on each rank at each compute instruction of its program. Planner, verifier and
// report share this one model.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// The bytes on one rank at the peak, by purpose.
struct MemoryUse {
  std::int64_t parameters = 0;  ///< and constants, as operators read them
  /// Bucket buffers, with those in the wire type; where ranks divide gradients, one such buffer for
  /// all of the stage's buckets, and the sums of what the rank owns.
  std::int64_t gradients = 0;
  /// Of what the rank owns, in fp32: momentum 1x, adam 2x, and in half precision a copy. Where that
  /// is in the host's memory, the window through which it is updated.
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;  ///< kept for backward on the device, all micro-batches in flight
  std::int64_t transfers = 0;    ///< received activations and gradients not yet consumed
  std::int64_t workspace = 0;    ///< largest operator's temporaries, and `HeldInPasses`
  std::int64_t host = 0;         ///< the most in the memory of the rank's host: not of the total
  std::int64_t total() const {
    return parameters + gradients + optimizer + activations + transfers + workspace;
  }
  MemoryUse& operator+=(const MemoryUse& other);
};

/// Returns the operators of each stage, by OpId ascending: resolves PlanStage::operators against
/// the graph. Errors: the model digest differs (the message names both), an unknown operator, an
/// operator in no stage or in two.
Result<std::vector<std::vector<OpId>>> resolve_stages(const Plan& plan, const Graph& graph);
/// Does the same for a plan that is known to be for `graph`. It does not compare digests, which
/// would cost more than the rest.
Result<std::vector<std::vector<OpId>>> operators_of_stages(const Plan& plan, const Graph& graph);

/// Returns the peak use of each rank over one step of its program. Cost: O(instructions +
/// operators).
Result<std::vector<MemoryUse>> peak_memory(const Plan& plan, const Graph& graph);

/// The bytes on a rank during a compute instruction of its program, and from its end until the next
/// one starts.
struct MemoryStep {
  InstructionId instruction;
  std::int64_t during = 0, after = 0;
};

/// Returns the compute instructions of each rank in program order; the largest `during` is the
/// rank's peak. Cost: that of `peak_memory`, and O(ranks x compute instructions).
Result<std::vector<std::vector<MemoryStep>>> memory_over_step(const Plan& plan, const Graph& graph);

}  // namespace agpcs
