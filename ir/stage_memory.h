// SPDX-License-Identifier: Apache-2.0
// Bytes of one replica of a pipeline stage: what stays, what a micro-batch adds, how high its
// passes peak.
#pragma once

#include "ir/graph.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <vector>

namespace agpcs {

struct StageMemory {
  std::int64_t parameters = 0;  ///< with master copies, states and constants
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t inputs = 0;  ///< model inputs of the whole step

  std::int64_t in_flight = 0;      ///< held by a micro-batch between its passes
  std::int64_t forward_peak = 0;   ///< of a micro-batch in its forward pass, `in_flight` with it
  std::int64_t backward_peak = 0;  ///< the same of its backward pass
  std::int64_t received = 0;       ///< activations that a micro-batch receives
  std::int64_t received_and_free = 0;  ///< of these, what `in_flight` does not hold
  std::int64_t sent = 0;  ///< activations that a micro-batch sends; `in_flight` has them
  std::int64_t gradients_received = 0;
  std::int64_t gradients_sent = 0;
};

/// What the memory of a stage depends on.
struct StageParts {
  std::vector<OpId> ops;  ///< ascending
  /// A tensor that comes from or goes to another stage; once for each of those.
  struct Crossing {
    TensorId tensor = kNone;
    bool gradient = false;  ///< its gradient travels back
  };
  std::vector<Crossing> received, sent;
  std::int64_t gradients = 0;  ///< bytes of its buckets
  std::int64_t micro_batches = 1;
  bool recompute = false;
};

/// Of a stage of `plan`, whose operators are `ops`.
StageParts parts_of_stage(const Plan& plan, const Graph& graph, int stage, std::vector<OpId> ops);

/// For `samples` samples of each micro-batch. Needs: a graph with its backward derived.
/// Cost: O(operators of the stage and their edges).
StageMemory stage_memory(const Graph& graph, const Training& training, const StageParts& parts,
                         std::int64_t samples);

}  // namespace agpcs
