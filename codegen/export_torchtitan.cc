// SPDX-License-Identifier: Apache-2.0
#include "codegen/export_torchtitan.h"

#include "codegen/module_stages.h"
#include "ir/graph/subgraph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

namespace agpcs {
namespace {

/// Prints a string of TOML.
std::string toml_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

/// Adds, to the front of each stage, the modules whose operators make the same in each step from
/// constants alone (`Graph::prologue`) and that no other operator is of, such as rotary tables.
/// They are in each stage that reads what they make.
void add_prologue_modules(const Graph& graph, const std::vector<StagedOp>& ops,
                          const std::map<std::string, int>& stage_of,
                          std::vector<std::vector<std::string>>& parts) {
  std::vector<IdSet> used(parts.size(), IdSet(graph.tensors.size()));
  for (const StagedOp& staged : ops) {
    for (const TensorId id : graph.op(staged.op).inputs) {
      if (id != kNone) used[static_cast<std::size_t>(staged.stage)].add(id);
    }
  }
  for (std::size_t s = 0; s < parts.size(); ++s) {
    std::vector<std::string> modules;
    for (auto op = graph.prologue.rbegin(); op != graph.prologue.rend(); ++op) {
      const auto is_used = [&](TensorId id) { return id != kNone && used[s].has(id); };
      if (std::none_of(op->outputs.begin(), op->outputs.end(), is_used)) continue;
      for (const TensorId id : op->inputs) {
        if (id != kNone) used[s].add(id);
      }
      if (op->modules.empty() || stage_of.contains(op->modules.front())) continue;
      if (std::count(modules.begin(), modules.end(), op->modules.front()) == 0) {
        modules.push_back(op->modules.front());
      }
    }
    parts[s].insert(parts[s].begin(), modules.rbegin(), modules.rend());
  }
}

/// Returns the modules of each stage, in the order in which they compute.
Result<std::vector<std::vector<std::string>>> modules_by_stage(const Plan& plan,
                                                               const Graph& graph) {
  AGPCS_TRY(const std::vector<StagedOp> ops,
            staged_ops(plan, graph, {.name = "torchtitan", .repeats_constants = true}));
  std::vector<std::vector<std::string>> parts(plan.stages.size());
  std::map<std::string, int> stage_of;
  for (const StagedOp& staged : ops) {
    const std::vector<std::string>& modules = graph.op(staged.op).modules;
    if (modules.empty()) {
      if (!staged.reads_samples) continue;
      return invalid_input(
          fmt::format("operator '{}' is of the model itself, which torchtitan runs in every stage\n"
                      "  hint: compute it in a module that the model calls",
                      graph.op(staged.op).name));
    }
    const std::string& module = modules.front();
    if (std::count(module.begin(), module.end(), '.') > 1) {
      return invalid_input(
          fmt::format("operator '{}' is of module '{}', and torchtitan parts the modules of the "
                      "model itself and of its lists\n  hint: plan the model that '{}' is of",
                      graph.op(staged.op).name, module, module.substr(module.find('.') + 1)));
    }
    const auto [known, is_new] = stage_of.emplace(module, staged.stage);
    if (is_new) parts[static_cast<std::size_t>(staged.stage)].push_back(module);
    if (known->second == staged.stage) continue;
    return not_whole(graph, staged.op,
                     fmt::format("of module '{}' is in stage s{}, and its others are in s{}",
                                 module, staged.stage, known->second));
  }
  for (std::size_t s = 0; s < parts.size(); ++s) {
    if (!parts[s].empty()) continue;
    return invalid_input(
        fmt::format("stage s{} has no module: its first operator is '{}'\n"
                    "  hint: agpcs-compile --cut-at modules cuts between whole modules",
                    s, plan.stages[s].idle() ? "" : plan.stages[s].operators.front().first));
  }
  add_prologue_modules(graph, ops, stage_of, parts);
  return parts;
}

}  // namespace

Result<std::string> torchtitan_toml(const Plan& plan, const Graph& graph,
                                    std::string_view schedule) {
  AGPCS_TRY(const auto parts, modules_by_stage(plan, graph));
  std::string text = fmt::format(
      "[training]\n"
      "local_batch_size = {}\n\n"
      "[parallelism]\n"
      "pipeline_parallel_degree = {}\n"
      "pipeline_parallel_microbatch_size = {}\n"
      "pipeline_parallel_schedule = \"PipelineScheduleMulti\"\n"
      "pipeline_parallel_schedule_csv = {}\n"
      "module_fqns_per_model_part = [\n",
      plan.training.batch, plan.stages.size(), plan.training.batch / plan.micro_batches,
      toml_text(schedule));
  for (const std::vector<std::string>& part : parts) {
    std::vector<std::string> names;
    for (const std::string& module : part) names.push_back(toml_text(module));
    text += fmt::format("  [{}],\n", fmt::join(names, ", "));
  }
  return text + "]\n";
}

}  // namespace agpcs
