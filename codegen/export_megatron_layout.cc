// SPDX-License-Identifier: Apache-2.0
#include "codegen/export_megatron_layout.h"

#include "codegen/module_stages.h"
#include "ir/graph/modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

/// Returns the outermost element of a list that an operator is of.
std::optional<ListElement> layer_of(const Op& op) {
  const std::optional<std::size_t> index = outermost_element(op);
  return index ? list_element(op.modules[*index]) : std::nullopt;
}

class LayoutOfPlan {
 public:
  LayoutOfPlan(const Plan& plan, const Graph& graph)
      : graph_(graph), layers_(plan.stages.size()), behind_(graph.ops.size()) {}

  Result<std::string> run(const std::vector<StagedOp>& ops) {
    for (const StagedOp& staged : ops) AGPCS_RETURN_IF_ERROR(add(staged));
    if (list_.empty()) {
      return invalid_input(
          "the model has no list of layers ('layers.0', 'layers.1'), and Megatron's layout is one "
          "of layers\n  hint: --format torch-schedule has the order of passes of any pipeline");
    }
    std::vector<std::string> stages;
    for (const int count : layers_) {
      stages.push_back(count < 2 ? std::string(static_cast<std::size_t>(count), 't')
                                 : fmt::format("t*{}", count));
    }
    return fmt::format("E{}L\n", fmt::join(stages, "|"));
  }

 private:
  Status add(const StagedOp& staged) {
    const Op& op = graph_.op(staged.op);
    const std::optional<ListElement> layer = layer_of(op);
    const bool behind = layer || reads_layers(op);
    behind_[static_cast<std::size_t>(staged.op)] = behind;
    if (!staged.reads_samples) return {};
    if (layer) return add_layer(staged, *layer);
    const int end = behind ? static_cast<int>(layers_.size()) - 1 : 0;
    if (staged.stage == end) return {};
    return not_whole(graph_, staged.op,
                     fmt::format("is {} the layers and in stage s{}, and Megatron has it in s{}",
                                 behind ? "behind" : "before", staged.stage, end));
  }

  bool reads_layers(const Op& op) const {
    return std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId id) {
      const OpId producer = id == kNone ? kNone : graph_.tensor(id).producer;
      return producer != kNone && behind_[static_cast<std::size_t>(producer)];
    });
  }

  Status add_layer(const StagedOp& staged, const ListElement& layer) {
    if (list_.empty()) list_ = layer.list;
    if (layer.list != list_) {
      return invalid_input(
          fmt::format("operator '{}' is of the list '{}', and the layers are those of '{}': a "
                      "layout of Megatron has one list of layers\n"
                      "  hint: --format torch-schedule has the order of passes of any pipeline",
                      graph_.op(staged.op).name, layer.list, list_));
    }
    const int known = static_cast<int>(stage_of_layer_.size());
    if (layer.number < known) {
      const int before = stage_of_layer_[static_cast<std::size_t>(layer.number)];
      if (before == staged.stage) return {};
      return not_whole(graph_, staged.op,
                       fmt::format("of layer '{}.{}' is in stage s{}, and its others are in s{}",
                                   list_, layer.number, staged.stage, before));
    }
    if (layer.number > known || (known > 0 && staged.stage < stage_of_layer_.back())) {
      return invalid_input(
          fmt::format("operator '{}' of layer '{}.{}' in stage s{} comes before layer {}, and "
                      "Megatron numbers layers in the order of stages\n"
                      "  hint: --format torch-schedule has the order of passes of any pipeline",
                      graph_.op(staged.op).name, list_, layer.number, staged.stage,
                      layer.number > known ? known : known - 1));
    }
    stage_of_layer_.push_back(staged.stage);
    ++layers_[static_cast<std::size_t>(staged.stage)];
    return {};
  }

  const Graph& graph_;
  std::string_view list_;
  std::vector<int> layers_;          ///< by stage: how many
  std::vector<int> stage_of_layer_;  ///< of those known, by number
  std::vector<bool> behind_;         ///< by OpId: it is of a layer, or depends on one
};

}  // namespace

Result<std::string> megatron_layout(const Plan& plan, const Graph& graph) {
  AGPCS_TRY(
      const std::vector<StagedOp> ops,
      staged_ops(plan, graph, {.name = "Megatron", .repeats_constants = true, .ties_ends = true}));
  return LayoutOfPlan(plan, graph).run(ops);
}

}  // namespace agpcs
