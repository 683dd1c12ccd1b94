// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/plan_graph.h"

#include "ir/graph/op_table.h"
#include "ir/plan/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace agpcs {

CutTensor cut_tensor(const Tensor& tensor, Precision precision) {
  CutTensor cut;
  cut.name = tensor.name;
  cut.type = held_type(tensor.type, precision);
  cut.batched = depends_on_batch(tensor.shape);
  cut.gradient = tensor.needs_gradient;
  const std::size_t first = cut.batched ? 1 : 0;
  for (std::size_t i = first; i < tensor.shape.size(); ++i)
    cut.dims.push_back(tensor.shape[i].fixed);
  return cut;
}

DType held_type(DType type, Precision precision) {
  return type == DType::kFp32 ? entry_of(kPrecisions, precision).held : type;
}

std::vector<Cut> cuts_between(const Graph& graph, const std::vector<int>& stage_of,
                              Precision precision) {
  std::map<std::pair<int, int>, std::vector<CutTensor>> tensors;
  for_each_crossing(graph, stage_of, [&](int from, int to, TensorId id) {
    tensors[{from, to}].push_back(cut_tensor(graph.tensor(id), precision));
  });
  std::vector<Cut> cuts;
  for (auto& [ends, list] : tensors) {
    cuts.push_back({fmt::format("c{}", cuts.size()), ends.first, ends.second, std::move(list)});
  }
  return cuts;
}

std::vector<PlanStage::Run> runs_of_stage(const Graph& graph, const std::vector<int>& stage_of,
                                          int stage) {
  std::vector<PlanStage::Run> runs;
  bool open = false;
  for (std::size_t op = 0; op < graph.ops.size(); ++op) {
    const bool inside = stage_of[op] == stage;
    const std::string& name = graph.ops[op].name;
    if (inside && !open) runs.push_back({name, name, 0});
    if (inside) {
      runs.back().last = name;
      ++runs.back().count;
    }
    open = inside;
  }
  return runs;
}

std::vector<OpId> readers_of(const Graph& graph, TensorId parameter, std::span<const OpId> ops) {
  std::vector<OpId> readers;
  std::vector<TensorId> views = {parameter};
  while (!views.empty()) {
    const TensorId read = views.back();
    views.pop_back();
    for (const OpId reader : graph.tensor(read).consumers) {
      if (!std::binary_search(ops.begin(), ops.end(), reader)) continue;
      readers.push_back(reader);
      const TensorId made = graph.op(reader).outputs.front();
      if (made != kNone && made != read && storage_of(graph, made) == parameter) {
        views.push_back(made);
      }
    }
  }
  std::sort(readers.begin(), readers.end());
  readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  return readers;
}

std::vector<int> stages_reading(const Graph& graph, const std::vector<int>& stage_of, TensorId id) {
  std::vector<int> stages;
  for (const OpId consumer : graph.tensor(id).consumers) {
    stages.push_back(stage_of[static_cast<std::size_t>(consumer)]);
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

}  // namespace agpcs
