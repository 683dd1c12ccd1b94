// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate.h"

#include "codegen/lower.h"
#include "ir/memory.h"
#include "ir/units.h"
#include "planner/group_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// What would help most, the cheapest remedy for the largest part first.
std::string remedy(const Problem& problem, const MemoryUse& use) {
  const std::int64_t weights = use.parameters + use.gradients + use.optimizer;
  const bool half = problem.training.precision == "fp16" || problem.training.precision == "bf16";
  std::string help;
  if (use.activations + use.transfers + use.workspace > weights) {
    help = problem.options.micro_batches > 0
               ? "more micro-batches (--micro-batches), a smaller batch"
               : "a smaller batch";
  } else {
    help = "more devices, so that each holds fewer parameters";
    if (problem.training.optimizer.kind == "adam") {
      help += "; optimizer sgd, which keeps less state than adam";
    }
  }
  if (!half) help += "; precision fp16 or bf16";
  return help + "; devices with more memory";
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

Result<MemoryFit> memory_fit(const Problem& problem, const Strategy& strategy, const Plan& plan) {
  AGPCS_TRY(const std::vector<MemoryUse> uses, peak_memory(plan, problem.graph));
  MemoryFit worst;
  bool first = true;
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {  // idle ranks need none
    for (std::size_t i = 0; i < plan.stages[s].ranks.size(); ++i) {
      MemoryFit fit;
      fit.rank = plan.stages[s].ranks[i];
      fit.device = strategy.stages[s].devices[i];
      fit.use = uses[static_cast<std::size_t>(fit.rank)];
      fit.capacity = problem.cluster.kind_of(fit.device).memory_bytes;
      const bool worse = first || fit.lacking() > worst.lacking() ||
                         (fit.lacking() == worst.lacking() && fit.rank < worst.rank);
      if (worse) worst = fit;
      first = false;
    }
  }
  return worst;
}

Status infeasible(const Problem& problem, const MemoryFit& fit) {
  const MemoryUse& use = fit.use;
  return {
      StatusCode::kInfeasible,
      fmt::format("device {} lacks {} bytes: it has {} ({}), and the step needs {} ({})\n"
                  "  parameters {}, gradients {}, optimizer {}, activations {}, transfers {}, "
                  "workspace {}\n"
                  "  hint: what would help: {}",
                  problem.cluster.device_name(fit.device), fit.lacking(), fit.capacity,
                  byte_figure(fit.capacity), use.total(), byte_figure(use.total()),
                  byte_figure(use.parameters), byte_figure(use.gradients),
                  byte_figure(use.optimizer), byte_figure(use.activations),
                  byte_figure(use.transfers), byte_figure(use.workspace), remedy(problem, use))};
}

Result<Evaluated> evaluate(const Problem& problem, Strategy strategy, const MadeBy& made_by,
                           MemoryFit* memory) {
  AGPCS_TRY(Plan plan, plan_of(problem, strategy, made_by));
  AGPCS_TRY(const MemoryFit fit, memory_fit(problem, strategy, plan));
  if (memory != nullptr) *memory = fit;
  if (fit.lacking() > 0) return infeasible(problem, fit);
  AGPCS_TRY(Estimate estimate, simulate(plan, problem.graph, problem.cluster, problem.costs));
  return Evaluated{std::move(strategy), std::move(plan), std::move(estimate)};
}

}  // namespace agpcs
