// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/parameters/parameter_uses.h"

#include "ir/graph/op_table.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/state_parts.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>

namespace agpcs {

void ParameterUses::find(const Graph& graph, const Plan& plan, int stage,
                         const std::vector<OpId>& ops, const std::vector<std::size_t>& segment_ends,
                         StageParameters& parameters) {
  parameters_ = &parameters;
  std::unordered_map<std::string, TensorId> ids;
  for (const TensorId id : graph.parameters()) ids.emplace(graph.tensor(id).name, id);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const PlanBucket& bucket = plan.buckets[b];
    if (!bucket.is_of(stage) || !bucket.divides_parameters()) continue;
    OpId first = std::numeric_limits<OpId>::max(), last = kNone;
    for (const BucketMember& member : bucket.members) {
      const auto id = ids.find(member.parameter);
      if (id == ids.end()) continue;
      for (const OpId reader : readers_of(graph, id->second, ops)) {
        first = std::min(first, reader);
        last = std::max(last, reader);
        note_view(graph, id->second, reader, ops);
        // A later reader may have no gradient.
        std::vector<int>& there = backward_[needed_before(reader, ops, segment_ends)];
        if (there.empty() || there.back() != static_cast<int>(b)) {
          there.push_back(static_cast<int>(b));
        }
      }
    }
    if (last == kNone) continue;
    buckets_.push_back(static_cast<int>(b));
    forward_[first].push_back(static_cast<int>(b));
    last_[last].push_back(static_cast<int>(b));
  }
  if (!empty()) parameters.need_by([this](int bucket) { need(bucket); });
  // Several that one operator needs come in the order of gathers: forward the last one first.
  for (auto& [op, buckets] : forward_) std::reverse(buckets.begin(), buckets.end());
}

void ParameterUses::note_view(const Graph& graph, TensorId parameter, OpId op,
                              const std::vector<OpId>& ops) {
  const TensorId made = graph.op(op).outputs.front();
  if (made == kNone || storage_of(graph, made) != parameter) return;
  const std::vector<OpId>& readers = graph.tensor(made).consumers;
  const bool read_here = std::all_of(readers.begin(), readers.end(), [&](OpId reader) {
    return std::binary_search(ops.begin(), ops.end(), reader);
  });
  if (read_here) views_.insert(op);
}

void ParameterUses::need(const Buckets& buckets, OpId op) {
  const auto found = buckets.find(op);
  if (found == buckets.end() || source_ == nullptr) return;
  for (const int bucket : found->second) need(bucket);
}

void ParameterUses::need(int bucket) const {
  const Status there = source_->need(bucket);
  if (!there.ok()) throw KernelError(there.message());
}

void ParameterUses::pass_by() {
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    need(*bucket);
    parameters_->release(*bucket);
  }
}

void ParameterUses::end(OpId op) {
  const auto found = last_.find(op);
  if (found == last_.end()) return;
  for (const int bucket : found->second) parameters_->release(bucket);
}

void ParameterUses::await_backward(OpId op, const Tensors& outputs) {
  if (backward_.count(op) == 0) return;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([this, op](const at::Tensor&) { begin_backward(op); });
  }
}

void ParameterUses::take_out(OpId op, Tensors& outputs) const {
  if (views_.count(op) != 0) return;
  for (at::Tensor& output : outputs) {
    if (output.defined() && parameters_->is_freed_by_passes(output)) output = output.clone();
  }
}

}  // namespace agpcs
