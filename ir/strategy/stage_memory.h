// SPDX-License-Identifier: Apache-2.0
// The bytes of one replica of a pipeline stage: what stays, what a micro-batch adds, and how high
// its passes peak.
#pragma once

#include "ir/graph/graph.h"
#include "ir/strategy/state_parts.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace agpcs {

struct StageMemory {
  std::int64_t parameters = 0;  ///< with states and constants
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  ///< with copies in fp32 of what is held in half precision
  std::int64_t host = 0;       ///< the optimizer's state in the host's memory
  std::int64_t inputs = 0;     ///< model inputs of the whole step
  /// By segment, what one micro-batch keeps of it in the host's memory between its passes; empty:
  /// all is on the device.
  std::vector<std::int64_t> to_host;
  std::int64_t host_in_flight() const;  ///< the sum of `to_host`

  std::int64_t in_flight = 0;      ///< held by one micro-batch between its passes
  std::int64_t forward_peak = 0;   ///< of one micro-batch in its forward pass, with `in_flight`
  std::int64_t backward_peak = 0;  ///< of one micro-batch in its backward pass, with `in_flight`
  std::int64_t ahead = 0;          ///< parameters that are gathered for the next pass, between two
  /// Where backward passes are parted, else 0: held by one micro-batch between the two parts; of
  /// one micro-batch in its input pass, with `in_flight`; and in its weight pass, with `put_off`.
  std::int64_t put_off = 0, input_peak = 0, weight_peak = 0;
  std::int64_t received = 0;           ///< activations that one micro-batch receives
  std::int64_t received_and_free = 0;  ///< the part of `received` that `in_flight` does not hold
  std::int64_t sent = 0;  ///< activations that one micro-batch sends; `in_flight` includes them
  std::int64_t gradients_received = 0;
  std::int64_t gradients_sent = 0;
  /// Gradients of one micro-batch that come from other stages of the same ranks.
  std::int64_t gradients_kept = 0;
};

/// The properties of a stage that its memory depends on.
struct StageParts {
  std::vector<OpId> ops;  ///< ascending
  /// A tensor that comes from or goes to another stage, once for each such stage.
  struct Crossing {
    TensorId tensor = kNone;
    bool gradient = false;  ///< its gradient travels back
    /// The other stage has the same ranks (`is_local`). Whoever makes the tensor holds it.
    bool local = false;
  };
  std::vector<Crossing> received, sent;
  /// The bytes of its buckets, without those whose gradients ranks divide. If gradients travel in
  /// another type, the buffers that travel are included, for buckets that several ranks hold.
  std::int64_t gradients = 0;
  HeldInPasses held;  ///< of buckets whose gradients ranks divide
  /// Where backward passes need these; buckets are the plan's.
  std::vector<BucketUse> uses;
  std::int64_t micro_batches = 1;
  /// Input and weight passes are apart; nothing is recomputed, and `held` is empty.
  bool parts_backward = false;
  /// Where the segments end, as indices into `ops`; empty: the stage keeps all on the device.
  std::vector<std::size_t> segment_ends;
  /// What these segments do (`Recomputation`).
  bool again = true, in_host = false;
};

/// Returns the parts of a stage of `plan` whose operators are `ops`.
StageParts parts_of_stage(const Plan& plan, const Graph& graph, int stage, std::vector<OpId> ops);

/// The unit, among units that cannot be divided, that needs most memory on its own.
struct NeediestParts {
  std::size_t index = 0;
  std::int64_t bytes = 0;  ///< on any device that runs it, with one sample at a time
};
/// Finds the neediest of `units`. Needs: `units` is not empty. Cost: O(operators + edges).
NeediestParts neediest(const Graph& graph, const Training& training,
                       const std::vector<std::vector<OpId>>& units);

/// Computes the memory of stages of one graph. It keeps what does not depend on the stage, and its
/// buffers, from call to call. It refers to both arguments, needs a graph with its backward
/// derived, and is not for concurrent use.
class StageMemoryModel {
 public:
  /// Cost: O(operators + edges).
  StageMemoryModel(const Graph& graph, const Training& training);
  /// Returns the memory for `samples` samples of each micro-batch. Cost: O(operators of the stage
  /// and their edges), and O(tensors) for a number of samples that is new.
  StageMemory of(const StageParts& parts, std::int64_t samples);
  /// Returns what of the stage's activations goes to the host and back, as roots of storages, with
  /// the segment with which it does. Needs: `parts.in_host`.
  std::map<TensorId, std::size_t> moved(const StageParts& parts, std::int64_t samples);

 private:
  /// State of a tensor for the stage at hand; only `root` stays from stage to stage.
  struct OfTensor {
    TensorId root = kNone;      // whose storage it shares; the other fields describe the root
    OpId first_keeper = kNone;  // the first operator that keeps it for its backward pass
    OpId repeated = kNone;      // the same, of those that are recomputed with its producer
    OpId last_reader = kNone;   // the last operator that reads it, or its producer
    std::int64_t gradient = 0;  // bytes of its gradient
    // The first operator whose weight pass multiplies by it or, of a parameter, makes its gradient.
    OpId first_product = kNone;
    bool seen = false, received = false, sent = false, has_gradient = false;
    bool gradient_put_off = false;  // its gradient stays for a weight pass
    bool gradient_comes = false;    // from another stage, into a buffer of its own
    bool lent = false;              // another stage of the same ranks makes it, and holds it
    std::size_t segment = 0;        // the last that keeps it
  };
  struct OfOp {
    // These never change: ranges in the lists of the same names, each up to the next operator's.
    std::size_t residents = 0, inputs = 0, outputs = 0, gradients = 0;
    std::int64_t extra = 0;  // bytes that it keeps besides tensors
    std::int64_t freed = 0;  // bytes that are freed when it ends
    // Bytes that are freed when it has been computed again, or of a sum that its weight pass makes.
    std::int64_t passing = 0;
  };
  /// An input to which a gradient flows. In backward passes it is held until they have computed
  /// what made `holder`, the input's storage; of a view of a parameter, the first view, from which
  /// the gradient goes to the parameter.
  struct Gradient {
    TensorId id = kNone, holder = kNone;
    bool of_parameter = false;
    bool in_weight_pass = false;  // where backward passes are parted, a weight pass makes it
    TensorId of_view = kNone;     // of what makes a view of a parameter: the first view
  };
  /// Calls `f(element)` for each element of `list` in the range of `op`.
  template <typename List, typename F>
  void for_each(OpId op, std::size_t OfOp::*range, const List& list, F f) const {
    const OfOp* const own = &ops_[static_cast<std::size_t>(op)];
    for (std::size_t i = own[0].*range; i < own[1].*range; ++i) f(list[i]);
  }
  /// The memory that an operator keeps for its backward pass.
  struct OpKept {
    bool known = false;
    std::vector<TensorId> roots;  // activations
    std::int64_t extra = 0;
  };
  struct Sizes {
    std::vector<std::int64_t> bytes;  // by TensorId
    std::vector<OpKept> kept;         // by OpId, computed on demand
  };

  Sizes& sizes_for(std::int64_t samples);
  const OpKept& kept_by(OpId op);
  std::int64_t bytes(TensorId id) const { return sizes_->bytes[static_cast<std::size_t>(id)]; }
  void count_resident();
  void count_resident(TensorId id);
  void count_cuts();
  void find_kept();
  void keep(TensorId root, OpId op);
  void keep_inputs_of_segment(std::size_t first, std::size_t end);
  void keep_of_operators(std::size_t first, std::size_t end);
  bool goes_to_host(const OfTensor& tensor) const;
  bool goes_to_host(std::size_t segment) const {
    return parts_->in_host && segment < parts_->segment_ends.size();
  }
  OpId gone_after(std::size_t segment) const;
  void count_moved();
  bool is_made_by(TensorId root, std::size_t first, std::size_t end) const;
  TensorId holder_of(TensorId id) const;
  TensorId view_made_by(OpId op) const;
  std::int64_t held_bytes() const;
  void find_put_off();
  bool needs_first(TensorId root, OpId op);
  void put_off(TensorId root, OpId op);
  std::int64_t weight_peak();
  std::int64_t forward_peak();
  bool is_put_off(const Gradient& to) const;
  std::int64_t make_gradients(OpId op, std::int64_t& live);
  std::int64_t repeat(std::size_t first, std::size_t end, std::int64_t& live);
  std::int64_t backward_peak(std::int64_t kept);
  std::int64_t take_freed(OpId op);
  void forget();

  const Graph& graph_;
  const Training& training_;
  std::int64_t optimizer_slots_ = 0;
  std::vector<OfTensor> tensors_;
  std::vector<OfOp> ops_;                          // by OpId, and an end
  std::vector<TensorId> residents_;                // inputs that are no activations, by operator
  std::vector<TensorId> inputs_;                   // roots of inputs, by operator
  std::vector<TensorId> outputs_;                  // by operator
  std::vector<Gradient> gradients_;                // by operator
  std::unordered_map<std::int64_t, Sizes> known_;  // by number of samples

  // State of the stage at hand.
  const StageParts* parts_ = nullptr;
  Sizes* sizes_ = nullptr;
  std::int64_t samples_ = 0;
  std::vector<TensorId> kept_, received_, sent_, with_gradient_;  // root tensors, each once
  std::vector<TensorId> put_off_;  // likewise, that weight passes need
  std::size_t segment_ = 0;        // while what segments keep is found
  StageMemory memory_;
};

}  // namespace agpcs
