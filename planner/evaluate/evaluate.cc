// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluate.h"

#include "codegen/lower.h"
#include "ir/base/units.h"
#include "ir/plan/choices.h"
#include "ir/strategy/interleaved.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/stage_memory.h"
#include "planner/evaluate/group_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Returns what fits on no device even if the model is divided as far as possible, or an empty
/// text.
std::string too_large_for_all(const Problem& problem) {
  if (may_offload(problem)) return "";  // the memory of hosts may help each of them
  std::vector<std::vector<OpId>> units;
  for (const Block& block : problem.blocks.blocks) units.push_back(block.ops);
  const NeediestParts most = neediest(problem.graph, problem.training, units);
  std::int64_t largest = 0;
  for (DeviceId id = 0; id < problem.cluster.device_count(); ++id) {
    largest = std::max(largest, problem.cluster.kind_of(id).memory_bytes);
  }
  if (most.bytes <= largest) return "";
  const std::vector<OpId>& ops = units[most.index];
  const std::string& first = problem.graph.op(ops.front()).name;
  const std::string what = ops.size() == 1
                               ? fmt::format("operator '{}' fits", first)
                               : fmt::format("operators '{}' to '{}', which share a device, fit",
                                             first, problem.graph.op(ops.back()).name);
  return fmt::format(
      "  {} on no device: with one sample {} needs {} ({}), the largest has {} ({})\n", what,
      ops.size() == 1 ? "it" : "what they do", most.bytes, byte_figure(most.bytes), largest,
      byte_figure(largest));
}

/// Returns what would help most, the cheapest remedy for the largest part first. `divides`: every
/// part of the model fits on some device, so that more devices or fewer samples can help.
std::string remedy(const Problem& problem, const MemoryFit& fit, bool divides) {
  const MemoryUse& use = fit.use;
  const std::int64_t weights = use.parameters + use.gradients + use.optimizer;
  const bool half = size_of(entry_of(kPrecisions, problem.training.precision).held) == 2;
  const bool of_weights = use.activations + use.transfers + use.workspace <= weights;
  std::vector<std::string> help;
  if (divides && of_weights) help.emplace_back("more devices, so that each holds fewer parameters");
  if (divides && !of_weights) {
    help.emplace_back(problem.options.micro_batches > 0
                          ? "more micro-batches (--micro-batches), a smaller batch"
                          : "a smaller batch");
  }
  if (of_weights && problem.training.optimizer.kind != OptimizerKind::kSgd) {
    help.push_back(fmt::format("optimizer sgd, which keeps less state than {}",
                               name_of(problem.training.optimizer.kind)));
  }
  if (!half) help.emplace_back("precision fp16 or bf16");
  help.push_back(
      fmt::format("devices with {:.2f} times the memory", std::ceil(100 * fit.memories) / 100));
  return fmt::format("{}", fmt::join(help, "; "));
}

}  // namespace

Result<Plan> plan_of(const Problem& problem, Strategy& strategy, const MadeBy& made_by) {
  if (strategy.buckets.empty()) {
    strategy = group_gradients(problem, std::move(strategy), problem.options.bucket_bytes);
  }
  if (kVerifyEveryCandidate) {
    AGPCS_RETURN_IF_ERROR(
        verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch));
  }
  AGPCS_TRY(Plan plan, lower(problem.graph, problem.cluster, problem.training, strategy, made_by,
                             problem.options.ranks));
  if (kVerifyEveryCandidate) AGPCS_RETURN_IF_ERROR(verify_plan(plan));
  return plan;
}

MemoryFit memory_fit(const Problem& problem, const Strategy& strategy, const Plan& plan,
                     const std::vector<MemoryUse>& uses) {
  MemoryFit worst;
  double memories = 0;
  bool first = true;
  const auto round = static_cast<std::size_t>(round_size(strategy));
  for (std::size_t s = 0; s < round; ++s) {                     // idle ranks need no memory
    const std::vector<int> ranks = plan.stages[s].all_ranks();  // both are ascending
    const std::vector<DeviceId> devices = all_devices(strategy.stages[s]);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      MemoryFit fit;
      fit.rank = ranks[i];
      fit.device = devices[i];
      fit.use = uses[static_cast<std::size_t>(fit.rank)];
      fit.capacity = problem.cluster.kind_of(fit.device).memory_bytes;
      memories =
          std::max(memories, static_cast<double>(fit.use.total()) /
                                 static_cast<double>(std::max<std::int64_t>(1, fit.capacity)));
      const bool worse = first || fit.lacking() > worst.lacking() ||
                         (fit.lacking() == worst.lacking() && fit.rank < worst.rank);
      if (worse) worst = fit;
      first = false;
    }
  }
  worst.memories = memories;
  return worst;
}

Status infeasible(const Problem& problem, const MemoryFit& fit) {
  const MemoryUse& use = fit.use;
  const std::string too_large = too_large_for_all(problem);
  return {StatusCode::kInfeasible,
          fmt::format("device {} lacks {} bytes: it has {} ({}), and the step needs {} ({})\n"
                      "  parameters {}, gradients {}, optimizer {}, activations {}, transfers {}, "
                      "workspace {}\n"
                      "{}  hint: what would help: {}",
                      problem.cluster.device_name(fit.device), fit.lacking(), fit.capacity,
                      byte_figure(fit.capacity), use.total(), byte_figure(use.total()),
                      byte_figure(use.parameters), byte_figure(use.gradients),
                      byte_figure(use.optimizer), byte_figure(use.activations),
                      byte_figure(use.transfers), byte_figure(use.workspace), too_large,
                      remedy(problem, fit, too_large.empty()))};
}

Result<Evaluated> evaluate(const Problem& problem, Strategy strategy, const MadeBy& made_by,
                           MemoryFit* memory) {
  AGPCS_TRY(Plan plan, plan_of(problem, strategy, made_by));
  AGPCS_TRY(const std::vector<MemoryUse> uses, peak_memory(plan, problem.graph));
  const MemoryFit fit = memory_fit(problem, strategy, plan, uses);
  if (memory != nullptr) *memory = fit;
  if (fit.lacking() > 0) return infeasible(problem, fit);
  const bool in_host = std::any_of(
      plan.stages.begin(), plan.stages.end(),
      [](const PlanStage& stage) { return stage.state_in_host || stage.activations_in_host; });
  if (in_host) AGPCS_RETURN_IF_ERROR(check_host_memory(plan, uses, problem.cluster));
  AGPCS_TRY(Estimate estimate,
            simulate(plan, problem.graph, problem.cluster, problem.costs, {.memory = &uses}));
  return Evaluated{std::move(strategy), std::move(plan), std::move(estimate)};
}

}  // namespace agpcs
