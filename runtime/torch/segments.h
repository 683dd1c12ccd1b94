// SPDX-License-Identifier: Apache-2.0
// SegmentPasses: the passes of one micro-batch through a stage, whose segments may recompute, or
// have what they keep in the memory of the host.
//
// A recomputed segment runs without autograd, so that only what it reads stays. For the backward
// pass, from the last segment to the first, it runs again with autograd, and autograd goes back
// through it alone. A tensor that an earlier segment made enters a segment without autograd's graph
// of what made it; its gradients from all later segments are added up here. A segment that has
// something in the host's memory and does not recompute has a piece of autograd's graph, too.
#pragma once

#include "runtime/torch/host_activations.h"
#include "runtime/torch/stage.h"

#include <torch/csrc/autograd/edge.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {

/// Where stages have something in the host's memory: how it gets there, and what of their
/// activations does, as roots of storages, and with which segment.
struct HostActivations {
  HostCopies* copies = nullptr;  ///< nullptr: all stays on the device
  const std::map<TensorId, std::size_t>* moved = nullptr;
};

/// It must stay where it is from a forward pass to the backward pass.
class SegmentPasses {
 public:
  using Values = std::unordered_map<TensorId, at::Tensor>;

  /// Computes the forward pass. `values` holds what the stage reads, and receives what it keeps.
  void forward(const Graph& graph, const StageCode& code, Values& values, const StageCode::Run& run,
               const HostActivations& host);
  /// Computes the backward pass of the last `forward`, and frees what is held. `gradients` are
  /// those of what the stage keeps, as far as there are some. Recomputed segments read the
  /// stage's `weights` and states anew; needs: weights are as in the forward pass. `run` is as
  /// there, without `new_state`: running statistics count once.
  void backward(Values gradients, const Values& weights, const StageCode::Run& run);

 private:
  // Where autograd's graph of a segment begins to go back. It does not hold what the segment made.
  struct Root {
    TensorId id = kNone;
    torch::autograd::Edge edge;
    std::vector<std::int64_t> sizes;
  };
  // What stays of a segment between the passes.
  struct Held {
    Values inputs;            // of a recomputed one, without weights and states
    std::vector<Root> roots;  // of another one
    std::vector<std::pair<TensorId, HostPass::Kept>> away;  // those of its inputs that move
  };
  void run_forward(std::size_t s, Values& values, const StageCode::Run& run);
  void hold(const StageCode::Segment& segment, const Values& values, Held& held);
  std::size_t place_of(TensorId id) const;
  void place(const std::vector<TensorId>& ids, const Values& values);
  bool is_in_host(std::size_t s) const { return code_->segments()[s].in_host; }
  void end_turn(std::size_t s);
  bool is_made_here(TensorId id) const;
  at::Tensor enter(TensorId id, const at::Tensor& value, PassClock* clock);
  std::vector<Root> run_again(const StageCode::Segment& segment, const Values& inputs,
                              const Values& weights, const StageCode::Run& run);
  static std::vector<Root> roots_of(const StageCode::Segment& segment, const Values& values);
  void go_back(std::vector<Root> roots);

  const Graph* graph_ = nullptr;
  const StageCode* code_ = nullptr;
  HostActivations host_;
  std::unique_ptr<HostPass> in_host_;  // nullptr: all is on the device
  std::vector<Held> held_;             // by segment
  Values gradients_;  // of what segments make that later ones have gone back through
};

}  // namespace agpcs
