// SPDX-License-Identifier: Apache-2.0
// ParameterUses: where the passes of a stage begin and end to read the buckets of which ranks
// divide the parameters.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/torch/ops/ops.h"
#include "runtime/torch/parameters/parameters.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>

#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace agpcs {

/// Passes wait here for what they read, and free it. Errors are KernelErrors. Autograd goes back
/// through operators from the last that it has seen to the first, so a backward pass comes to
/// buckets in the order of the plan's gathers.
class ParameterUses {
 public:
  /// Needs: `parameters` are those of the stage, and outlive this object. `ops`: the stage's,
  /// ascending; `segment_ends`: where its recomputed segments end.
  void find(const Graph& graph, const Plan& plan, int stage, const std::vector<OpId>& ops,
            const std::vector<std::size_t>& segment_ends, StageParameters& parameters);
  void connect(ParameterSource& source) { source_ = &source; }
  bool empty() const { return forward_.empty(); }
  void need(int bucket) const;

  /// Says that a forward pass begins or has ended operator `op`.
  void begin(OpId op) { need(forward_, op); }
  void end(OpId op);
  /// Says that a forward pass has nothing to compute.
  void pass_by();
  /// Says that a backward pass begins operator `op`, or the segment that it ends.
  void begin_backward(OpId op) { need(backward_, op); }
  /// Arranges that `begin_backward(op)` is called when `outputs`, which `op` has just made, get
  /// their gradient.
  void await_backward(OpId op, const Tensors& outputs);
  /// Gives outputs of operator `op` that lie in a bucket's memory, as slices of parameters do,
  /// memory of their own, but for those that the memory model has for views: who reads one reads
  /// the bucket.
  void take_out(OpId op, Tensors& outputs) const;

 private:
  using Buckets = std::unordered_map<OpId, std::vector<int>>;
  void note_view(const Graph& graph, TensorId parameter, OpId op, const std::vector<OpId>& ops);
  void need(const Buckets& buckets, OpId op);

  std::vector<int> buckets_;        // as the plan has them
  std::unordered_set<OpId> views_;  // operators whose output is a view, read in the stage alone
  StageParameters* parameters_ = nullptr;
  ParameterSource* source_ = nullptr;
  Buckets forward_, last_, backward_;  // by operator: reads them first, last; backward reads them
};

}  // namespace agpcs
