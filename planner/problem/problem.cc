// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/problem.h"

#include "ir/graph/modules.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/state_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {

namespace {

/// Refuses a wire type without an fp32 gradient, since only those are rounded for the wire.
Status check_wire_type(const Problem& problem) {
  const Training& training = problem.training;
  if (!training.wire_type) return {};
  const std::vector<TensorId> parameters = problem.graph.parameters();
  const bool rounds = std::any_of(parameters.begin(), parameters.end(), [&](TensorId id) {
    return problem.graph.tensor(id).needs_gradient && gradient_of(problem, id).held == DType::kFp32;
  });
  if (rounds) return {};
  return {StatusCode::kUsage,
          fmt::format("wire type {}, but no gradients are fp32, in precision {}\n  hint: without "
                      "--wire-type gradients travel as they are",
                      name_of(*training.wire_type), name_of(training.precision))};
}

}  // namespace

Result<std::unique_ptr<const Problem>> Problem::make(Graph graph, Cluster cluster,
                                                     Training training,
                                                     const ProblemOptions& options) {
  if (training.batch < 1) {
    return invalid_input(
        "no batch to plan for\n  hint: give --batch, or training.batch in the "
        "cluster file");
  }
  if (training.batch > kMostSamples) {
    return invalid_input(fmt::format("a batch of {} samples, at most {} can be planned for",
                                     training.batch, kMostSamples));
  }
  if (options.micro_batches > training.batch) {
    return invalid_input(fmt::format("a batch of {} does not make {} micro-batches", training.batch,
                                     options.micro_batches));
  }
  if (options.micro_batches > kMostMicroBatches) {
    return invalid_input(fmt::format("{} micro-batches, at most {} can be planned for",
                                     options.micro_batches, kMostMicroBatches));
  }
  if (!options.cut_modules) AGPCS_RETURN_IF_ERROR(check_modules(graph));
  std::unique_ptr<Problem> problem(new Problem);
  problem->graph = std::move(graph);
  problem->cluster = std::move(cluster);
  problem->training = std::move(training);
  problem->options = options;
  AGPCS_RETURN_IF_ERROR(check_wire_type(*problem));
  AGPCS_TRY(problem->costs, CostTable::make(problem->graph, problem->cluster, problem->training));
  const std::int64_t samples =
      std::max<std::int64_t>(1, problem->training.batch / problem->cluster.device_count());
  BlockOptions blocks;
  blocks.most_blocks = options.most_blocks;
  blocks.cut_modules = options.cut_modules;
  problem->blocks = make_blocks(problem->graph, samples, problem->training.precision, blocks);
  return std::unique_ptr<const Problem>(std::move(problem));
}

bool may_divide(const Problem& problem, StateLevel level) {
  if (level > problem.options.most_divided) return false;
  return level == StateLevel::kWhole || state_bytes(problem.training) > 0;
}

bool may_offload(const Problem& problem) {
  return problem.options.offload && can_offload(problem.cluster, problem.training);
}

bool may_offload_activations(const Problem& problem) {
  return problem.options.offload_activations && problem.options.choose_segments &&
         can_offload(problem.cluster);
}

bool may_use_hosts(const Problem& problem) {
  return may_offload(problem) || may_offload_activations(problem);
}

GradientSize gradient_of(const Problem& problem, TensorId parameter) {
  const Tensor& tensor = problem.graph.tensor(parameter);
  GradientSize size;
  size.held = held_type(tensor.type, problem.training.precision);
  size.elements = elements_at(tensor.shape, 1);
  const DType travels = travelling_type(size.held, problem.training.wire_type);
  size.held_bytes = size.elements * static_cast<std::int64_t>(size_of(size.held));
  size.travelling_bytes = size.elements * static_cast<std::int64_t>(size_of(travels));
  size.rounded_bytes = travels == size.held ? 0 : size.travelling_bytes;
  return size;
}

}  // namespace agpcs
