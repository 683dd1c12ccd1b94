// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/segments.h"

#include "ir/graph/op_table.h"
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
                            const StageCode::Run& run, const HostActivations& host) {
  graph_ = &graph;
  code_ = &code;
  host_ = host;
  gradients_.clear();
  held_.clear();
  held_.resize(code.segments().size());
  in_host_ = host.copies == nullptr ? nullptr : std::make_unique<HostPass>(*host.copies);
  for (std::size_t s = 0; s < held_.size(); ++s) {
    run_forward(s, values, run);
    end_turn(s);
  }
  if (in_host_) in_host_->end_forward();
}

void SegmentPasses::run_forward(std::size_t s, Values& values, const StageCode::Run& run) {
  const StageCode::Segment& segment = code_->segments()[s];
  Held& held = held_[s];
  const at::AutoGradMode mode(!segment.recomputed);
  if (segment.in_host) {
    in_host_->begin(s);
    place(segment.inputs, values);
  }
  if (segment.recomputed) {
    hold(segment, values, held);
    code_->run_segment(segment, values, run);
    return;
  }
  for (const TensorId id : segment.inputs) {
    if (is_made_here(id)) values[id] = enter(id, values.at(id), run.clock);
  }
  if (segment.in_host) {
    for (const auto& [id, constant] : code_->constants()) {
      in_host_->place(constant, HostPass::kStays);
    }
    const SavesToHost saves(*in_host_);
    code_->run_segment(segment, values, run);
    place(segment.results, values);
  } else {
    code_->run_segment(segment, values, run);
  }
  held.roots = roots_of(segment, values);
}

/// Ends the turn of segment `s` of a forward pass: what the segment before it keeps has left the
/// device, and what it keeps itself leaves in the next turn, or at once after the last.
void SegmentPasses::end_turn(std::size_t s) {
  if (s > 0 && is_in_host(s - 1)) in_host_->end_out(s - 1);
  if (!is_in_host(s)) return;
  in_host_->begin_out(s);
  if (s + 1 == held_.size()) in_host_->end_out(s);
}

/// Returns with which segment a tensor that crosses the border of one goes to the host.
std::size_t SegmentPasses::place_of(TensorId id) const {
  if (graph_->tensor(id).kind != TensorKind::kActivation) return HostPass::kStays;
  const auto found = host_.moved->find(storage_of(*graph_, id));
  return found == host_.moved->end() ? HostPass::kStays : found->second;
}

void SegmentPasses::place(const std::vector<TensorId>& ids, const Values& values) {
  for (const TensorId id : ids) in_host_->place(values.at(id), place_of(id));
}

void SegmentPasses::hold(const StageCode::Segment& segment, const Values& values, Held& held) {
  for (const TensorId id : segment.inputs) {
    const TensorKind kind = graph_->tensor(id).kind;
    if (kind != TensorKind::kActivation && kind != TensorKind::kInput) continue;
    if (segment.in_host && place_of(id) != HostPass::kStays) {
      held.away.emplace_back(id, in_host_->keep(values.at(id)));
    } else {
      held.inputs[id] = values.at(id);
    }
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
  if (!held_.empty() && is_in_host(held_.size() - 1)) in_host_->begin_in(held_.size() - 1);
  for (std::size_t s = held_.size(); s-- > 0;) {
    const StageCode::Segment& segment = code_->segments()[s];
    Held held = std::move(held_[s]);
    if (segment.in_host) in_host_->end_in(s);
    if (s > 0 && is_in_host(s - 1)) in_host_->begin_in(s - 1);
    const bool wanted = std::any_of(segment.results.begin(), segment.results.end(),
                                    [&](TensorId id) { return gradients_.count(id) != 0; });
    if (!wanted) continue;
    if (segment.recomputed) {
      if (run.clock != nullptr) run.clock->stop(Opcode::kBackward);
      if (run.uses != nullptr) run.uses->begin_backward(code_->operator_at(segment.end - 1));
      for (const auto& [id, kept] : std::exchange(held.away, {})) held.inputs[id] = kept.tensor();
      held.roots = run_again(segment, held.inputs, weights, run);
    }
    go_back(std::move(held.roots));
  }
  gradients_.clear();
}

std::vector<SegmentPasses::Root> SegmentPasses::run_again(const StageCode::Segment& segment,
                                                          const Values& inputs,
                                                          const Values& weights,
                                                          const StageCode::Run& run) {
  if (run.clock != nullptr) run.clock->start();
  Values values = weights;
  for (const auto& [id, value] : inputs) {
    values[id] = is_made_here(id) ? enter(id, value, run.clock) : value;
  }
  StageCode::Run again = run;
  again.again = true;
  code_->run_segment(segment, values, again);
  std::vector<Root> roots = roots_of(segment, values);
  if (run.clock == nullptr) return roots;
  run.clock->stop(Opcode::kForward);
  run.clock->start();
  return roots;
}

std::vector<SegmentPasses::Root> SegmentPasses::roots_of(const StageCode::Segment& segment,
                                                         const Values& values) {
  std::vector<Root> roots;
  for (const TensorId id : segment.results) {
    const at::Tensor& value = values.at(id);
    if (!value.requires_grad()) continue;
    roots.push_back({id, torch::autograd::impl::gradient_edge(value), value.sizes().vec()});
  }
  return roots;
}

void SegmentPasses::go_back(std::vector<Root> roots) {
  torch::autograd::edge_list edges;  // which hold no values
  Tensors gradients;
  for (Root& root : roots) {
    const auto found = gradients_.find(root.id);
    if (found == gradients_.end()) continue;
    const at::Tensor gradient = std::move(found->second);
    gradients_.erase(found);
    gradients.push_back(gradient.view(root.sizes));
    edges.push_back(std::move(root.edge));
  }
  roots.clear();
  if (edges.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(
      edges, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace agpcs
