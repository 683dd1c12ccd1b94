// SPDX-License-Identifier: Apache-2.0
// Tensors are counted by the storage they share (`storage_of`): a Reshape costs nothing.
#include "ir/stage_memory.h"

#include "ir/op_table.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

/// What the backward pass needs, and when it is last needed: by the first operator that keeps it.
struct KeptStorage {
  std::unordered_map<TensorId, OpId> first_keeper;
  std::unordered_map<OpId, std::int64_t> extra;
};

class StageCounter {
 public:
  StageCounter(const Graph& graph, const Training& training, const StageParts& parts,
               std::int64_t samples)
      : graph_(graph), training_(training), parts_(parts), ops_(parts.ops), samples_(samples) {}

  StageMemory run() {
    count_resident();
    count_cuts();
    const KeptStorage kept = find_kept();
    memory_.forward_peak = forward_peak(kept);
    memory_.in_flight = held_bytes(kept);
    memory_.backward_peak = backward_peak(kept, memory_.in_flight);
    if (parts_.recompute) {  // the backward pass begins with the forward pass
      memory_.backward_peak = std::max(memory_.backward_peak, memory_.forward_peak);
      memory_.forward_peak = forward_peak(received_only());
      memory_.in_flight = held_bytes(received_only());
      return memory_;
    }
    for (const TensorId id : received_) {
      if (!kept.first_keeper.contains(id)) memory_.received_and_free += bytes(id);
    }
    return memory_;
  }

 private:
  std::int64_t bytes(TensorId id) const {
    const Tensor& t = graph_.tensor(id);
    return elements_at(t.shape, samples_) *
           static_cast<std::int64_t>(element_bytes(t.type, training_.precision));
  }
  void count_resident() {
    std::set<TensorId> seen;
    for (const OpId op : ops_) {
      for (const TensorId id : graph_.op(op).inputs) {
        if (id != kNone && seen.insert(id).second) count_resident(id);
      }
    }
    memory_.gradients = parts_.gradients;
  }

  void count_resident(TensorId id) {
    const Tensor& t = graph_.tensor(id);
    const std::int64_t elements = elements_at(t.shape, samples_);
    switch (t.kind) {
      case TensorKind::kParameter:
        memory_.optimizer += elements * kFp32Bytes * optimizer_slots();
        if (bytes(id) < elements * kFp32Bytes) memory_.parameters += elements * kFp32Bytes;
        [[fallthrough]];
      case TensorKind::kState:
      case TensorKind::kConstant:
        memory_.parameters += bytes(id);
        return;
      case TensorKind::kInput:
        memory_.inputs += bytes(id) * parts_.micro_batches;
        return;
      case TensorKind::kActivation:
        return;
    }
  }

  int optimizer_slots() const {
    const Optimizer& o = training_.optimizer;
    if (o.kind == "adam") return 2;
    return o.momentum != 0 ? 1 : 0;
  }

  void count_cuts() {
    for (const StageParts::Crossing& crossing : parts_.received) {
      const std::int64_t size = bytes(crossing.tensor);
      received_.insert(storage_of(graph_, crossing.tensor));
      memory_.received += size;
      if (crossing.gradient) memory_.gradients_sent += size;
    }
    for (const StageParts::Crossing& crossing : parts_.sent) {
      const std::int64_t size = bytes(crossing.tensor);
      sent_.insert(storage_of(graph_, crossing.tensor));
      memory_.sent += size;
      if (crossing.gradient) memory_.gradients_received += size;
    }
  }

  KeptStorage find_kept() const {
    KeptStorage kept;
    for (const OpId op : ops_) {
      const Kept of_op = kept_for_backward(graph_, op, samples_, training_.precision);
      if (of_op.extra_bytes != 0) kept.extra[op] = of_op.extra_bytes;
      for (const TensorId id : of_op.tensors) {
        const TensorId root = storage_of(graph_, id);
        if (graph_.tensor(root).kind == TensorKind::kActivation) {
          kept.first_keeper.emplace(root, op);
        }
      }
    }
    return kept;
  }

  /// With recomputation a micro-batch keeps what it received, and nothing else.
  KeptStorage received_only() const {
    KeptStorage kept;
    for (const TensorId id : received_) kept.first_keeper.emplace(id, ops_.front());
    return kept;
  }

  /// What a micro-batch holds between its passes: kept, and sent.
  std::int64_t held_bytes(const KeptStorage& kept) const {
    std::int64_t sum = 0;
    for (const auto& [id, op] : kept.first_keeper) sum += bytes(id);
    for (const auto& [op, extra] : kept.extra) sum += extra;
    for (const TensorId id : sent_) {
      if (!kept.first_keeper.contains(id)) sum += bytes(id);
    }
    return sum;
  }

  /// By storage, the last operator of the stage that reads it.
  std::unordered_map<TensorId, OpId> last_readers() const {
    std::unordered_map<TensorId, OpId> last;
    for (const OpId op : ops_) {
      for (const TensorId id : graph_.op(op).inputs) {
        if (id != kNone) last[storage_of(graph_, id)] = op;
      }
      for (const TensorId id : graph_.op(op).outputs) {
        if (id != kNone) last.emplace(storage_of(graph_, id), op);
      }
    }
    return last;
  }

  std::int64_t forward_peak(const KeptStorage& kept) const {
    const std::unordered_map<TensorId, OpId> last = last_readers();
    std::unordered_map<OpId, std::int64_t> freed_after;
    std::int64_t live = 0, peak = 0;
    for (const TensorId id : received_) {
      if (kept.first_keeper.contains(id)) live += bytes(id);
    }
    for (const OpId op : ops_) {
      const auto extra = kept.extra.find(op);
      if (extra != kept.extra.end()) live += extra->second;
      for (const TensorId id : graph_.op(op).outputs) {
        if (id == kNone || storage_of(graph_, id) != id) continue;
        live += bytes(id);
        if (!kept.first_keeper.contains(id) && !sent_.contains(id)) {
          freed_after[last.at(id)] += bytes(id);
        }
      }
      peak = std::max(peak, live);
      live -= freed_after[op];
    }
    return std::max(peak, live);
  }

  /// Adds the gradients that `op`'s backward makes for activations to `gradients` and `live`.
  /// Returns the bytes of those for parameters, which go into their buckets at once.
  std::int64_t make_gradients(const Op& op, std::unordered_map<TensorId, std::int64_t>& gradients,
                              std::int64_t& live) const {
    std::int64_t passing = 0;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const TensorId id = op.inputs[i];
      if (id == kNone || !graph_.tensor(id).needs_gradient || !passes_gradient(op, i)) continue;
      if (graph_.tensor(id).kind == TensorKind::kParameter) {
        passing += bytes(id);
        continue;
      }
      const TensorId root = storage_of(graph_, id);
      if (sent_.contains(root) || !gradients.emplace(root, bytes(id)).second) continue;
      live += bytes(id);
    }
    return passing;
  }

  std::int64_t backward_peak(const KeptStorage& kept, std::int64_t held) const {
    std::unordered_map<OpId, std::int64_t> freed_after = kept.extra;
    for (const auto& [id, op] : kept.first_keeper) {
      if (!sent_.contains(id)) freed_after[op] += bytes(id);
    }
    std::unordered_map<TensorId, std::int64_t> gradients;
    std::int64_t live = held, peak = held;
    for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
      const std::int64_t passing = make_gradients(graph_.op(*op), gradients, live);
      peak = std::max(peak, live + passing);
      for (const TensorId id : graph_.op(*op).outputs) {
        const auto it = id == kNone ? gradients.end() : gradients.find(id);
        if (it == gradients.end()) continue;
        live -= it->second;
        gradients.erase(it);
      }
      live -= freed_after[*op];
    }
    return peak;
  }

  const Graph& graph_;
  const Training& training_;
  const StageParts& parts_;
  const std::vector<OpId>& ops_;
  std::int64_t samples_;
  std::set<TensorId> received_, sent_;  // storages
  StageMemory memory_;
};

}  // namespace

StageMemory stage_memory(const Graph& graph, const Training& training, const StageParts& parts,
                         std::int64_t samples) {
  return StageCounter(graph, training, parts, samples).run();
}

StageParts parts_of_stage(const Plan& plan, const Graph& graph, int stage, std::vector<OpId> ops) {
  std::unordered_map<std::string_view, TensorId> ids;
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    ids.emplace(graph.tensor(id).name, id);
  }
  StageParts parts;
  parts.ops = std::move(ops);
  parts.micro_batches = plan.micro_batches;
  parts.recompute = plan.stages[static_cast<std::size_t>(stage)].recompute;
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.stage != stage) continue;
    parts.gradients += bucket.elements() * static_cast<std::int64_t>(size_of(bucket.type));
  }
  for (const Cut& cut : plan.cuts) {
    if (cut.from != stage && cut.to != stage) continue;
    for (const CutTensor& tensor : cut.tensors) {
      const auto id = ids.find(tensor.name);
      if (id == ids.end()) continue;
      (cut.to == stage ? parts.received : parts.sent).push_back({id->second, tensor.gradient});
    }
  }
  return parts;
}

}  // namespace agpcs
