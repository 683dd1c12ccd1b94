// SPDX-License-Identifier: Apache-2.0
// What the memory of a stage depends on: of a plan's stage, and of operators alone.
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

}  // namespace agpcs
