// SPDX-License-Identifier: Apache-2.0
#include "planner/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {

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
  if (options.micro_batches > 0 && training.batch % options.micro_batches != 0) {
    return invalid_input(fmt::format("a batch of {} does not divide into {} micro-batches",
                                     training.batch, options.micro_batches));
  }
  if (options.micro_batches > kMostMicroBatches) {
    return invalid_input(fmt::format("{} micro-batches, at most {} can be planned for",
                                     options.micro_batches, kMostMicroBatches));
  }
  std::unique_ptr<Problem> problem(new Problem);
  problem->graph = std::move(graph);
  problem->cluster = std::move(cluster);
  problem->training = std::move(training);
  problem->options = options;
  AGPCS_TRY(problem->costs, CostTable::make(problem->graph, problem->cluster, problem->training));
  const std::int64_t samples =
      std::max<std::int64_t>(1, problem->training.batch / problem->cluster.device_count());
  BlockOptions blocks;
  blocks.most_blocks = options.most_blocks;
  problem->blocks = make_blocks(problem->graph, samples, problem->training.precision, blocks);
  return std::unique_ptr<const Problem>(std::move(problem));
}

}  // namespace agpcs
