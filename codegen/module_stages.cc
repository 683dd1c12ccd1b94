// SPDX-License-Identifier: Apache-2.0
#include "codegen/module_stages.h"

#include "ir/graph/modules.h"
#include "ir/strategy/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace agpcs {
namespace {

Status check_ranks(const Plan& plan, const PipelineReader& reader) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const int rank = plan.stages[s].ranks.front();
    if (rank == static_cast<int>(s)) continue;
    return invalid_input(
        fmt::format("stage s{} is on rank {}, and {} has it on rank {}\n"
                    "  hint: a cluster file that lists devices in the order of the stages",
                    s, rank, reader.name, s));
  }
  return {};
}

/// Returns, by OpId, the operators on which the model's outputs depend.
std::vector<bool> computes_outputs(const Graph& graph) {
  std::vector<bool> needed(graph.ops.size());
  std::vector<TensorId> open = graph.outputs;
  while (!open.empty()) {
    const TensorId id = open.back();
    open.pop_back();
    if (id == kNone || graph.tensor(id).producer == kNone) continue;
    const OpId op = graph.tensor(id).producer;
    if (needed[static_cast<std::size_t>(op)]) continue;
    needed[static_cast<std::size_t>(op)] = true;
    const std::vector<TensorId>& inputs = graph.op(op).inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  return needed;
}

/// Returns, by OpId, the operators that depend on samples.
std::vector<bool> reads_samples(const Graph& graph) {
  std::vector<bool> reads(graph.ops.size());
  for (std::size_t op = 0; op < graph.ops.size(); ++op) {
    const std::vector<TensorId>& inputs = graph.ops[op].inputs;
    reads[op] = std::any_of(inputs.begin(), inputs.end(), [&](TensorId id) {
      if (id == kNone) return false;
      const Tensor& tensor = graph.tensor(id);
      if (tensor.producer != kNone) return bool{reads[static_cast<std::size_t>(tensor.producer)]};
      return tensor.kind == TensorKind::kInput && depends_on_batch(tensor.shape);
    });
  }
  return reads;
}

}  // namespace

Result<std::vector<StagedOp>> staged_ops(const Plan& plan, const Graph& graph,
                                         const PipelineReader& reader) {
  AGPCS_RETURN_IF_ERROR(check_pipeline(plan, reader));
  AGPCS_RETURN_IF_ERROR(check_ranks(plan, reader));
  AGPCS_TRY(const auto stages, resolve_stages(plan, graph));
  AGPCS_RETURN_IF_ERROR(check_modules(graph));
  const std::vector<bool> needed = computes_outputs(graph), samples = reads_samples(graph);
  std::vector<StagedOp> ops;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const OpId op : stages[s]) {
      if (!needed[static_cast<std::size_t>(op)]) continue;
      ops.push_back({op, static_cast<int>(s), samples[static_cast<std::size_t>(op)]});
    }
  }
  std::sort(ops.begin(), ops.end(),
            [](const StagedOp& a, const StagedOp& b) { return a.op < b.op; });
  return ops;
}

Status not_whole(const Graph& graph, OpId op, std::string_view what) {
  return invalid_input(fmt::format(
      "operator '{}' {}\n  hint: agpcs-compile --cut-at modules cuts between whole modules",
      graph.op(op).name, what));
}

}  // namespace agpcs
