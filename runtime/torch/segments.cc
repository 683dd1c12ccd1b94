// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/segments.h"

#include "runtime/torch/device/clock.h"
#include "runtime/torch/entry.h"
#include "runtime/torch/parameters/parameter_uses.h"

#include <agpcs/plan.h>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace agpcs {
void SegmentPasses::forward(const Graph& graph, const StageCode& code, Values& values,
                            const StageCode::Run& run) {
  graph_ = &graph;
  code_ = &code;
  gradients_.clear();
  held_.assign(code.segments().size(), {});
  for (std::size_t s = 0; s < held_.size(); ++s) {
    const StageCode::Segment& segment = code.segments()[s];
    const at::AutoGradMode mode(!segment.recomputed);
    if (segment.recomputed) {
      hold(segment, values, held_[s].inputs);
      code.run_segment(segment, values, run);
      continue;
    }
    for (const TensorId id : segment.inputs) {
      if (is_made_here(id)) values[id] = enter(id, values.at(id), run.clock);
    }
    code.run_segment(segment, values, run);
    for (const TensorId id : segment.results) held_[s].results[id] = values.at(id);
  }
}

void SegmentPasses::hold(const StageCode::Segment& segment, const Values& values,
                         Values& inputs) const {
  for (const TensorId id : segment.inputs) {
    const TensorKind kind = graph_->tensor(id).kind;
    if (kind == TensorKind::kActivation || kind == TensorKind::kInput) inputs[id] = values.at(id);
  }
}

bool SegmentPasses::is_made_here(TensorId id) const {
  const std::vector<TensorId>& inputs = code_->inputs();
  return graph_->tensor(id).kind == TensorKind::kActivation &&
         !std::binary_search(inputs.begin(), inputs.end(), id);
}

at::Tensor SegmentPasses::enter(TensorId id, const at::Tensor& value, PassClock* clock) {
  if (!graph_->tensor(id).needs_gradient) return value.detach();
  const at::Tensor entry = agpcs::enter(value, [this, id](const at::Tensor& gradient) {
    at::Tensor& sum = gradients_[id];
    sum = sum.defined() ? sum + gradient : gradient;
  });
  if (clock != nullptr) clock->leave_out(entry);
  return entry;
}

void SegmentPasses::backward(Values gradients, const Values& weights, const StageCode::Run& run) {
  gradients_ = std::move(gradients);
  for (std::size_t s = held_.size(); s-- > 0;) {
    const StageCode::Segment& segment = code_->segments()[s];
    Held held = std::move(held_[s]);
    const bool wanted = std::any_of(segment.results.begin(), segment.results.end(),
                                    [&](TensorId id) { return gradients_.count(id) != 0; });
    if (!wanted) continue;
    if (segment.recomputed) {
      if (run.clock != nullptr) run.clock->stop(Opcode::kBackward);
      if (run.uses != nullptr) run.uses->begin_backward(code_->operator_at(segment.end - 1));
      held.results = run_again(segment, held.inputs, weights, run);
    }
    go_back(segment, std::move(held.results));
  }
  gradients_.clear();
}

SegmentPasses::Values SegmentPasses::run_again(const StageCode::Segment& segment,
                                               const Values& inputs, const Values& weights,
                                               const StageCode::Run& run) {
  if (run.clock != nullptr) run.clock->start();
  Values values = weights;
  for (const auto& [id, value] : inputs) {
    values[id] = is_made_here(id) ? enter(id, value, run.clock) : value;
  }
  StageCode::Run again = run;
  again.again = true;
  code_->run_segment(segment, values, again);
  Values results;
  for (const TensorId id : segment.results) results[id] = values.at(id);
  if (run.clock == nullptr) return results;
  run.clock->stop(Opcode::kForward);
  run.clock->start();
  return results;
}

void SegmentPasses::go_back(const StageCode::Segment& segment, Values results) {
  torch::autograd::edge_list roots;  // which hold no values
  Tensors gradients;
  for (const TensorId id : segment.results) {
    const auto found = gradients_.find(id);
    if (found == gradients_.end()) continue;
    const at::Tensor gradient = std::move(found->second);
    gradients_.erase(found);
    const at::Tensor& value = results.at(id);
    if (!value.requires_grad()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(value));
    gradients.push_back(gradient.view(value.sizes()));
  }
  results.clear();
  if (roots.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(
      roots, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace agpcs
