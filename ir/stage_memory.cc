// SPDX-License-Identifier: Apache-2.0
// Tensors are counted by the storage they share (`storage_of`): a Reshape costs nothing.
#include "ir/stage_memory.h"

#include "ir/op_table.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>
#include <unordered_map>

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
  StageCounter(const Plan& plan, const Graph& graph, int stage, const std::vector<OpId>& ops,
               std::int64_t samples)
      : plan_(plan),
        graph_(graph),
        spec_(plan.stages[static_cast<std::size_t>(stage)]),
        stage_(stage),
        ops_(ops),
        samples_(samples) {}

  StageMemory run() {
    count_resident();
    count_cuts();
    const KeptStorage kept = find_kept();
    memory_.forward_peak = forward_peak(kept);
    memory_.in_flight = held_bytes(kept);
    memory_.backward_peak = backward_peak(kept, memory_.in_flight);
    if (spec_.recompute) {  // the backward pass begins with the forward pass
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
           static_cast<std::int64_t>(element_bytes(t.type, plan_.training.precision));
  }
  TensorId find(const std::string& name) {
    if (ids_.empty()) {
      for (TensorId id = 0; id < static_cast<TensorId>(graph_.tensors.size()); ++id) {
        ids_.emplace(graph_.tensor(id).name, id);
      }
    }
    const auto it = ids_.find(name);
    return it == ids_.end() ? kNone : it->second;
  }

  void count_resident() {
    std::set<TensorId> seen;
    for (const OpId op : ops_) {
      for (const TensorId id : graph_.op(op).inputs) {
        if (id != kNone && seen.insert(id).second) count_resident(id);
      }
    }
    for (const PlanBucket& bucket : plan_.buckets) {
      if (bucket.stage != stage_) continue;
      memory_.gradients += bucket.elements() * static_cast<std::int64_t>(size_of(bucket.type));
    }
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
        memory_.inputs += bytes(id) * plan_.micro_batches;
        return;
      case TensorKind::kActivation:
        return;
    }
  }

  int optimizer_slots() const {
    const Optimizer& o = plan_.training.optimizer;
    if (o.kind == "adam") return 2;
    return o.momentum != 0 ? 1 : 0;
  }

  void count_cuts() {
    for (const Cut& cut : plan_.cuts) {
      if (cut.from != stage_ && cut.to != stage_) continue;
      for (const CutTensor& tensor : cut.tensors) {
        const TensorId id = find(tensor.name);
        if (id == kNone) continue;
        const std::int64_t size = bytes(id);
        const std::int64_t gradient = tensor.gradient ? size : 0;
        if (cut.to == stage_) {
          received_.insert(storage_of(graph_, id));
          memory_.received += size;
          memory_.gradients_sent += gradient;
        } else {
          sent_.insert(storage_of(graph_, id));
          memory_.sent += size;
          memory_.gradients_received += gradient;
        }
      }
    }
  }

  KeptStorage find_kept() const {
    KeptStorage kept;
    for (const OpId op : ops_) {
      const Kept of_op = kept_for_backward(graph_, op, samples_, plan_.training.precision);
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

  const Plan& plan_;
  const Graph& graph_;
  const PlanStage& spec_;
  int stage_;
  const std::vector<OpId>& ops_;
  std::int64_t samples_;
  std::unordered_map<std::string_view, TensorId> ids_;
  std::set<TensorId> received_, sent_;  // storages
  StageMemory memory_;
};

}  // namespace

StageMemory stage_memory(const Plan& plan, const Graph& graph, int stage,
                         const std::vector<OpId>& ops, std::int64_t samples) {
  return StageCounter(plan, graph, stage, ops, samples).run();
}

}  // namespace agpcs
