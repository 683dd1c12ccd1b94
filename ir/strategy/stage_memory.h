// SPDX-License-Identifier: Apache-2.0
// Bytes of one replica of a pipeline stage: what stays, what a micro-batch adds, how high its
// passes peak.
#pragma once

#include "ir/graph.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
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
  /// Bytes of its buckets, and of those that they travel in where that is another type and the
  /// stage has several ranks.
  std::int64_t gradients = 0;
  std::int64_t micro_batches = 1;
  bool recompute = false;
};

/// Of a stage of `plan`, whose operators are `ops`.
StageParts parts_of_stage(const Plan& plan, const Graph& graph, int stage, std::vector<OpId> ops);

/// Of parts that cannot be divided, the ones that need most memory by themselves.
struct NeediestParts {
  std::size_t index = 0;
  std::int64_t bytes = 0;  ///< on any device that runs them, with one sample at a time
};
/// Needs: `units` is not empty. Cost: O(operators + edges).
NeediestParts neediest(const Graph& graph, const Training& training,
                       const std::vector<std::vector<OpId>>& units);

/// The memory of stages of one graph. Keeps what does not depend on the stage, and its memory.
/// Refers to both; needs a graph with its backward derived. Not for concurrent use.
class StageMemoryModel {
 public:
  /// Cost: O(operators + edges).
  StageMemoryModel(const Graph& graph, const Training& training);
  /// For `samples` samples of each micro-batch. Cost: O(operators of the stage and their edges);
  /// O(tensors) for a number of samples that is new.
  StageMemory of(const StageParts& parts, std::int64_t samples);

 private:
  /// Of a stage's run; `root` for good.
  struct OfTensor {
    TensorId root = kNone;      // whose storage it shares; the others are of the root
    OpId first_keeper = kNone;  // the first that keeps it for its backward pass
    OpId last_reader = kNone;   // or its producer
    std::int64_t gradient = 0;  // bytes of its gradient
    bool seen = false, received = false, sent = false, has_gradient = false;
  };
  struct OfOp {
    std::size_t gradient = 0, gradient_end = 0;  // in gradients_, for good
    std::int64_t extra = 0;                      // what it keeps besides tensors
    std::int64_t freed = 0;                      // bytes that its end frees
  };
  /// What an operator keeps for its backward pass.
  struct OpKept {
    bool known = false;
    std::vector<TensorId> roots;  // activations
    std::int64_t extra = 0;
  };
  struct Sizes {
    std::vector<std::int64_t> bytes;  // by TensorId
    std::vector<OpKept> kept;         // by OpId, as far as asked for
  };

  Sizes& sizes_for(std::int64_t samples);
  const OpKept& kept_by(OpId op);
  std::int64_t bytes(TensorId id) const { return sizes_->bytes[static_cast<std::size_t>(id)]; }
  void count_resident();
  void count_resident(TensorId id);
  void count_cuts();
  void find_kept();
  void keep(TensorId root, OpId op);
  void keep_received_only();
  std::int64_t held_bytes() const;
  std::int64_t forward_peak();
  std::int64_t make_gradients(OpId op, std::int64_t& live);
  std::int64_t backward_peak(std::int64_t held);
  std::int64_t take_freed(OpId op);
  void forget();

  const Graph& graph_;
  const Training& training_;
  std::int64_t optimizer_slots_ = 0;
  std::vector<OfTensor> tensors_;
  std::vector<OfOp> ops_;
  std::vector<TensorId> gradients_;                // inputs that gradients flow to, by operator
  std::unordered_map<std::int64_t, Sizes> known_;  // by samples

  // Of the stage at hand.
  const StageParts* parts_ = nullptr;
  Sizes* sizes_ = nullptr;
  std::int64_t samples_ = 0;
  std::vector<TensorId> kept_, received_, sent_, with_gradient_;  // roots, each once
  StageMemory memory_;
};

}  // namespace agpcs
