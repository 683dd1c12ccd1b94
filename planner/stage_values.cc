// SPDX-License-Identifier: Apache-2.0
#include "planner/stage_values.h"

#include "ir/base/units.h"
#include "ir/strategy/plan_against.h"
#include "ir/strategy/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace agpcs {
namespace {

/// Checks that each operator is in exactly one block, and that no edge goes back.
Status verify_blocks(const Problem& problem) {
  const BlockGraph& blocks = problem.blocks;
  std::vector<int> times(problem.graph.ops.size());
  for (const Block& block : blocks.blocks) {
    for (const OpId op : block.ops) ++times[static_cast<std::size_t>(op)];
  }
  for (std::size_t op = 0; op < times.size(); ++op) {
    if (times[op] == 1) continue;
    return internal_error(
        fmt::format("operator '{}' is in {} blocks", problem.graph.ops[op].name, times[op]));
  }
  for (const BlockEdge& edge : blocks.edges) {
    if (edge.from < edge.to) continue;
    return internal_error(fmt::format("blocks: edge {} to {} goes back", edge.from, edge.to));
  }
  return {};
}

Status verify_in(const Problem& problem, const Strategy& strategy) {
  return verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch);
}

std::size_t devices_of(const Strategy& strategy) {
  std::size_t devices = 0;
  for (const StageSpec& stage : strategy.stages) devices += stage.devices.size();
  return devices;
}

}  // namespace

StageValue<ClusterAndTraining> cluster_value() {
  return {[](const ClusterAndTraining& value) { return print_cluster(value.cluster); },
          [](const ClusterAndTraining& value) { return verify_cluster(value.cluster); }};
}

StageValue<Graph> graph_value() { return {print_graph, verify_graph}; }

StageValue<std::unique_ptr<const Problem>> problem_value() {
  return {[](const std::unique_ptr<const Problem>& problem) {
            return print_blocks(problem->blocks, problem->graph);
          },
          [](const std::unique_ptr<const Problem>& problem) { return verify_blocks(*problem); }};
}

StageValue<Seeds> seeds_value(const Problem& problem) {
  return {print_seeds, [&problem](const Seeds& seeds) -> Status {
            for (const Seed& seed : seeds.pool.all()) {
              AGPCS_RETURN_IF_ERROR(verify_in(problem, seed.strategy));
            }
            return {};
          }};
}

StageValue<Decision> decision_value(const Problem& problem) {
  return {[&problem](const Decision& decision) {
            return print_strategy(decision.strategy, problem.graph, problem.cluster);
          },
          [&problem](const Decision& decision) { return verify_in(problem, decision.strategy); }};
}

StageValue<Evaluated> plan_value(const Problem& problem) {
  return {[](const Evaluated& lowered) { return print_plan(lowered.plan); },
          [&problem](const Evaluated& lowered) {
            return verify_plan_against(lowered.plan, problem.graph, problem.cluster);
          },
          true};
}

std::string print_seeds(const Seeds& seeds) {
  constexpr std::string_view kRow = "{:<13} {:>9} {:>9} {:>6} {:>7} {:>13}\n";
  std::string text =
      fmt::format(kRow, "seeder", "step", "lacks", "stages", "devices", "micro-batches");
  for (const Seed& seed : seeds.pool.all()) {
    const Score& score = seed.score;
    text +=
        fmt::format(kRow, seed.seeder, figure(score.step_seconds, "s"),
                    score.fits() ? "-" : byte_figure(score.lacking), seed.strategy.stages.size(),
                    devices_of(seed.strategy), seed.strategy.micro_batches);
  }
  return text;
}

}  // namespace agpcs
