// SPDX-License-Identifier: Apache-2.0
// SegmentPasses: the passes of one micro-batch through a stage, whose segments may recompute.
//
// A recomputed segment runs without autograd, so that only what it reads stays. For the backward
// pass, from the last segment to the first, it runs again with autograd, and autograd goes back
// through it alone. A tensor that an earlier segment made enters a segment without autograd's graph
// of what made it; its gradients from all later segments are added up here.
#pragma once

#include "runtime/torch/stage.h"

#include <cstddef>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// It must stay where it is from a forward pass to the backward pass.
class SegmentPasses {
 public:
  using Values = std::unordered_map<TensorId, at::Tensor>;

  /// Computes the forward pass. `values` holds what the stage reads, and receives what it keeps.
  void forward(const Graph& graph, const StageCode& code, Values& values,
               const StageCode::Run& run);
  /// Computes the backward pass of the last `forward`, and frees what is held. `gradients` are
  /// those of what the stage keeps, as far as there are some. Recomputed segments read the
  /// stage's `weights` and states anew; needs: weights are as in the forward pass. `run` is as
  /// there, without `new_state`: running statistics count once.
  void backward(Values gradients, const Values& weights, const StageCode::Run& run);

 private:
  // What stays of a segment between the passes.
  struct Held {
    Values inputs;   // of a recomputed one, without weights and states
    Values results;  // of another one, with autograd's graph
  };
  void hold(const StageCode::Segment& segment, const Values& values, Values& inputs) const;
  bool is_made_here(TensorId id) const;
  at::Tensor enter(TensorId id, const at::Tensor& value, PassClock* clock);
  Values run_again(const StageCode::Segment& segment, const Values& inputs, const Values& weights,
                   const StageCode::Run& run);
  void go_back(const StageCode::Segment& segment, Values results);

  const Graph* graph_ = nullptr;
  const StageCode* code_ = nullptr;
  std::vector<Held> held_;  // by segment
  Values gradients_;        // of what segments make that later ones have gone back through
};

}  // namespace agpcs
