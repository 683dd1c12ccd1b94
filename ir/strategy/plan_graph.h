// SPDX-License-Identifier: Apache-2.0
// The consequences of assigning operators to stages: cuts, runs, owners of parameters. `lower`
// writes it into plans; `verify_plan_against` compares plans with it.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/plan.h>

#include <span>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns the type in which a tensor of `type` is held, sent and differentiated under `precision`:
/// fp32 becomes fp16 or bf16 in those precisions; every other type stays.
DType held_type(DType type, Precision precision);

/// Returns `tensor` in the form that a cut has.
CutTensor cut_tensor(const Tensor& tensor, Precision precision);

/// Calls `f(from, to, tensor)` for each tensor that an operator of stage `from` makes and an
/// operator of another stage `to` reads. The calls come in operator order, for one tensor by `to`,
/// once for each pair. Needs: `stage_of` by OpId. Cost: O(edges).
template <typename F>
void for_each_crossing(const Graph& graph, const std::vector<int>& stage_of, F f) {
  const auto stage = [&](OpId op) { return stage_of[static_cast<std::size_t>(op)]; };
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    for (const TensorId id : graph.op(op).outputs) {
      if (id == kNone) continue;
      const std::vector<OpId>& consumers = graph.tensor(id).consumers;
      for (int last = kNone;;) {  // reading stages, ascending
        int next = kNone;
        for (const OpId consumer : consumers) {
          const int reader = stage(consumer);
          if (reader > last && reader != stage(op) && (next == kNone || reader < next)) {
            next = reader;
          }
        }
        if (next == kNone) break;
        f(stage(op), next, id);
        last = next;
      }
    }
  }
}

/// Returns all cuts, by (from, to): for each pair of stages the tensors that an operator of `from`
/// makes and an operator of the later stage `to` reads, in operator order. Model inputs,
/// parameters, states and constants are not cut, because every rank has its own. Needs: `stage_of`
/// by OpId; edges never go back. Cost: O(edges log edges).
std::vector<Cut> cuts_between(const Graph& graph, const std::vector<int>& stage_of,
                              Precision precision);

/// Returns the operators of `stage` as runs of consecutive operators.
std::vector<PlanStage::Run> runs_of_stage(const Graph& graph, const std::vector<int>& stage_of,
                                          int stage);

/// Returns the operators of `ops` that read a parameter or a view of it (`storage_of`), ascending,
/// each once. `ops`: those of a stage, ascending.
std::vector<OpId> readers_of(const Graph& graph, TensorId parameter, std::span<const OpId> ops);

/// Returns the stages whose operators read a tensor, ascending.
std::vector<int> stages_reading(const Graph& graph, const std::vector<int>& stage_of, TensorId id);

}  // namespace agpcs
