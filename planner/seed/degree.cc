// SPDX-License-Identifier: Apache-2.0
// Our reading of the AGPCS paper's baseline: "a fixed graph partitioning strategy based on a simple
// degree heuristic". The paper does not say which heuristic. Here, the degree of an operator is the
// number of tensors that join it to other operators, counted once for each of them, in and out.
// Blocks are taken in topological order and cut into as many runs as there are devices, of about
// equal total degree. Run i goes to device i, one device a stage, whatever its speed. With more
// than kMostGroups devices, there are kMostGroups runs on the first devices, as a pipeline of all
// of them would hardly ever be full. A block belongs to the run in which the middle of its degree
// falls; runs without a block are left out. Only the number of micro-batches is chosen, in the
// baseline's favour.
#include "ir/base/at.h"
#include "planner/seed/candidates.h"
#include "planner/seed/seeder.h"

#include <algorithm>
#include <numeric>

namespace agpcs {
namespace {

std::vector<double> degrees(const Problem& problem) {
  std::vector<double> degree(at(problem.blocks.size()));
  for (const Tensor& tensor : problem.graph.tensors) {
    if (tensor.producer == kNone) continue;
    for (const OpId consumer : tensor.consumers) {
      degree[at(problem.blocks.block_of[at(tensor.producer)])] += 1;
      degree[at(problem.blocks.block_of[at(consumer)])] += 1;
    }
  }
  return degree;
}

Partition cut_by_degree(const Problem& problem) {
  const std::vector<double> degree = degrees(problem);
  const double total = std::accumulate(degree.begin(), degree.end(), 0.0);
  const int runs = std::min(problem.cluster.device_count(), static_cast<int>(kMostGroups));
  Partition partition;
  double before = 0;
  int last_run = -1;
  for (const double d : degree) {
    const double middle = total > 0 ? (before + d / 2) / total : 0;
    const int run = std::min(static_cast<int>(middle * runs), runs - 1);
    if (run != last_run) {
      partition.groups.push_back({static_cast<DeviceId>(partition.groups.size())});
    }
    last_run = run;
    partition.stage_of_block.push_back(static_cast<int>(partition.groups.size()) - 1);
    before += d;
  }
  return partition;
}

class DegreeSeeder : public Seeder {
 public:
  std::string_view name() const override { return "degree"; }

  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    const Partition partition = cut_by_degree(problem);
    RoughModel model(problem);
    const auto stages = static_cast<int>(partition.groups.size());
    std::vector<Candidate> candidates =
        pipelines(model, partition, micro_batch_counts(problem, stages));
    std::erase_if(candidates, [](const Candidate& candidate) {
      return candidate.strategy.schedule != Schedule::k1F1B;
    });
    Evaluator evaluator(problem);
    return thin_out(model, evaluator, std::move(candidates), 4, Relief::kNever);
  }
};

}  // namespace

std::unique_ptr<Seeder> make_degree_seeder() { return std::make_unique<DegreeSeeder>(); }

}  // namespace agpcs
