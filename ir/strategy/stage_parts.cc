// SPDX-License-Identifier: Apache-2.0
// What the memory of a stage depends on: of a plan's stage, and of operators alone; and what its
// segments keep, here or in the memory of the host.
#include "ir/base/at.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/segments.h"
#include "ir/strategy/stage_memory.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

/// Returns parts that consist of the operators `ops` alone, recomputed: the least memory of any
/// stage that has them.
StageParts parts_alone(const Graph& graph, const Training& training, std::vector<OpId> ops) {
  StageParts parts;
  std::vector<TensorId> trained;
  for (const OpId op : ops) {
    for (const TensorId id : graph.op(op).inputs) {
      if (id == kNone || graph.tensor(id).kind != TensorKind::kParameter) continue;
      if (graph.tensor(id).needs_gradient) trained.push_back(id);
    }
  }
  std::sort(trained.begin(), trained.end());
  trained.erase(std::unique(trained.begin(), trained.end()), trained.end());
  for (const TensorId id : trained) {
    const Tensor& tensor = graph.tensor(id);
    parts.gradients +=
        elements_at(tensor.shape, 1) *
        static_cast<std::int64_t>(size_of(held_type(tensor.type, training.precision)));
  }
  parts.segment_ends = {ops.size()};
  parts.ops = std::move(ops);
  return parts;
}

}  // namespace

NeediestParts neediest(const Graph& graph, const Training& training,
                       const std::vector<std::vector<OpId>>& units) {
  StageMemoryModel model(graph, training);
  NeediestParts most;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const StageMemory m = model.of(parts_alone(graph, training, units[i]), 1);
    const std::int64_t bytes =
        m.parameters + m.gradients + m.optimizer + std::max(m.forward_peak, m.backward_peak);
    if (bytes > most.bytes) most = {i, bytes};
  }
  return most;
}

namespace {

/// The parameters of such a bucket are read in its stage alone.
FilledBucket filled_bucket(const Plan& plan, const Graph& graph,
                           const std::unordered_map<std::string_view, TensorId>& ids,
                           const PlanBucket& bucket, const StageParts& parts) {
  FilledBucket filled;
  const auto width = static_cast<std::int64_t>(size_of(bucket.type));
  const DType travels = travelling_type(bucket.type, plan.training.wire_type);
  const auto rounded = travels == bucket.type ? 0 : static_cast<std::int64_t>(size_of(travels));
  for (const BucketMember& member : bucket.members) {
    const auto id = ids.find(member.parameter);
    if (id == ids.end() || graph.tensor(id->second).consumers.empty()) continue;
    const std::vector<OpId>& readers = graph.tensor(id->second).consumers;
    filled.add(readers_of(graph, id->second, parts.ops).back(), readers.back(), readers.front(),
               member.elements * width, member.elements * rounded);
  }
  if (bucket.divides_parameters()) filled.gather(parts.ops, parts.segment_ends);
  return filled;
}

}  // namespace

StageParts parts_of_stage(const Plan& plan, const Graph& graph, int stage, std::vector<OpId> ops) {
  std::unordered_map<std::string_view, TensorId> ids;
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    ids.emplace(graph.tensor(id).name, id);
  }
  StageParts parts;
  parts.ops = std::move(ops);
  parts.micro_batches = plan.micro_batches;
  const PlanStage& described = plan.stages[static_cast<std::size_t>(stage)];
  parts.segment_ends = segment_ends(described, parts.ops.size());
  parts.again = described.recompute;
  parts.in_host = described.activations_in_host;
  parts.parts_backward = plan.parts_backward();
  std::vector<FilledBucket> filled;
  std::vector<int> indices;  // of these in the plan
  for (const PlanBucket& bucket : plan.buckets) {
    if (!bucket.is_of(stage)) continue;
    if (bucket.divides_gradients()) {
      filled.push_back(filled_bucket(plan, graph, ids, bucket, parts));
      indices.push_back(static_cast<int>(&bucket - plan.buckets.data()));
      continue;
    }
    parts.gradients += bucket.bytes();
    const bool rounded = travelling_type(bucket.type, plan.training.wire_type) != bucket.type;
    if (rounded && is_reduced(plan, bucket)) {
      parts.gradients += travelling_bytes(plan.training, bucket);
    }
  }
  parts.uses = backward_uses(filled);
  parts.held = held_in_passes(filled, parts.uses);
  for (BucketUse& use : parts.uses) use.bucket = indices[static_cast<std::size_t>(use.bucket)];
  for (const Cut& cut : plan.cuts) {
    if (cut.from != stage && cut.to != stage) continue;
    for (const CutTensor& tensor : cut.tensors) {
      const auto id = ids.find(tensor.name);
      if (id == ids.end()) continue;
      (cut.to == stage ? parts.received : parts.sent)
          .push_back({id->second, tensor.gradient, is_local(plan, cut)});
    }
  }
  return parts;
}

void StageMemoryModel::keep(TensorId root, OpId op) {
  OfTensor& tensor = tensors_[at(root)];
  tensor.segment = segment_;
  if (tensor.first_keeper != kNone || tensor.lent) return;
  tensor.first_keeper = op;
  kept_.push_back(root);
}

/// A micro-batch keeps what the operators of parts_->ops[first, end) need.
void StageMemoryModel::keep_of_operators(std::size_t first, std::size_t end) {
  for (std::size_t i = first; i < end; ++i) {
    const OpId op = parts_->ops[i];
    const OpKept& kept = kept_by(op);
    ops_[at(op)].extra = kept.extra;
    for (const TensorId root : kept.roots) keep(root, op);
  }
}

/// What other stages have or need stays on the device. What several segments keep goes with the
/// last of them, and comes back with it.
bool StageMemoryModel::goes_to_host(const OfTensor& tensor) const {
  return goes_to_host(tensor.segment) && !tensor.sent && !tensor.received;
}

/// Returns the operator behind which the device no longer has what a segment keeps: the last of the
/// segment after it, beside which it is copied.
OpId StageMemoryModel::gone_after(std::size_t segment) const {
  const std::vector<std::size_t>& ends = parts_->segment_ends;
  return segment + 1 < ends.size() ? parts_->ops[ends[segment + 1] - 1] : parts_->ops.back();
}

/// Counts what goes to the host, by segment.
void StageMemoryModel::count_moved() {
  if (!parts_->in_host) return;
  const std::vector<std::size_t>& ends = parts_->segment_ends;
  memory_.to_host.assign(ends.size(), 0);
  for (const TensorId id : kept_) {
    const OfTensor& tensor = tensors_[at(id)];
    if (goes_to_host(tensor)) memory_.to_host[tensor.segment] += bytes(id);
  }
  for (std::size_t i = 0, segment = 0; segment < ends.size(); ++i) {
    if (i == ends[segment] && ++segment == ends.size()) return;
    memory_.to_host[segment] += ops_[at(parts_->ops[i])].extra;
  }
}

/// Returns whether an operator of parts_->ops[first, end) makes what `root` holds.
bool StageMemoryModel::is_made_by(TensorId root, std::size_t first, std::size_t end) const {
  const OpId producer = graph_.tensor(root).producer;
  const OfTensor& tensor = tensors_[at(root)];
  return !tensor.received && !tensor.lent && producer >= parts_->ops[first] &&
         producer <= parts_->ops[end - 1];
}

/// A micro-batch keeps what a recomputed segment reads and does not make.
void StageMemoryModel::keep_inputs_of_segment(std::size_t first, std::size_t end) {
  for (std::size_t i = first; i < end; ++i) {
    for_each(parts_->ops[i], &OfOp::inputs, inputs_, [&](TensorId root) {
      if (graph_.tensor(root).kind != TensorKind::kActivation) return;
      if (!is_made_by(root, first, end)) keep(root, parts_->ops[first]);
    });
  }
}

}  // namespace agpcs
