// SPDX-License-Identifier: Apache-2.0
#include "planner/candidates.h"

#include "cost_model/link_model.h"
#include "ir/plan_graph.h"
#include "planner/evaluator.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace agpcs {
namespace {

std::size_t at(int id) { return static_cast<std::size_t>(id); }

std::size_t hosts_of(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  std::set<int> hosts;
  for (const DeviceId device : devices) hosts.insert(cluster.devices[at(device)].host);
  return hosts.size();
}

/// Micro-batches times stages beyond which a plan is long: simulating it takes seconds, and filling
/// its pipeline is a small part of the step even with fewer micro-batches.
constexpr std::int64_t kManyPasses = 16384;

bool is_long(const Strategy& strategy) {
  return strategy.micro_batches * static_cast<std::int64_t>(strategy.stages.size()) > kManyPasses;
}

/// Everything about a partition that does not depend on the number of micro-batches.
class PartitionCosts {
 public:
  PartitionCosts(const Problem& problem, const Partition& partition)
      : problem_(problem), partition_(partition) {
    const std::vector<int> stage_of = stage_of_ops(problem.blocks, partition.stage_of_block);
    const int stages = static_cast<int>(partition.groups.size());
    for (std::vector<OpId>& ops : ops_of_stages(stage_of, stages)) {
      timers_.emplace_back(problem, std::move(ops));
    }
    strategy_.stage_of = stage_of;
    add_gradients(stage_of);
    bytes_per_sample_.assign(at(stages), std::vector<double>(at(stages)));
    for (const BlockEdge& edge : problem.blocks.edges) {
      const int from = partition.stage_of_block[at(edge.from)];
      const int to = partition.stage_of_block[at(edge.to)];
      if (from == to) continue;
      bytes_per_sample_[at(from)][at(to)] +=
          edge.bytes / static_cast<double>(problem.blocks.samples);
    }
  }

  Candidate with(std::int64_t micro_batches) {
    Candidate candidate{strategy_, 0};
    candidate.strategy.micro_batches = micro_batches;
    const std::int64_t samples = problem_.training.batch / micro_batches;
    double sum = 0, slowest = 0, late = 0;
    for (std::size_t s = 0; s < timers_.size(); ++s) {
      candidate.strategy.stages.push_back(
          balanced_stage(problem_, timers_[s], partition_.groups[s], samples));
      const StageSpec& spec = candidate.strategy.stages.back();
      const double seconds = slowest_seconds(problem_, timers_[s], spec);
      sum += seconds;
      slowest = std::max({slowest, seconds, cut_seconds(s, samples)});
      late = std::max(late, all_reduce_seconds(s, spec) - seconds / 2);
    }
    candidate.rough_seconds = sum + static_cast<double>(micro_batches - 1) * slowest + late;
    return candidate;
  }

 private:
  void add_gradients(const std::vector<int>& stage_of) {
    gradient_bytes_.assign(partition_.groups.size(), 0);
    for (const TensorId id : problem_.graph.parameters()) {
      const Tensor& parameter = problem_.graph.tensor(id);
      const DType held = held_type(parameter.type, problem_.training.precision);
      gradient_bytes_[at(stage_of[at(parameter.consumers.front())])] +=
          elements_at(parameter.shape, 1) * static_cast<std::int64_t>(size_of(held));
    }
  }

  /// The slowest transfer of one micro-batch out of stage `from`, replicas side by side.
  double cut_seconds(std::size_t from, std::int64_t samples) const {
    double slowest = 0;
    for (std::size_t to = from + 1; to < timers_.size(); ++to) {
      const double bytes = bytes_per_sample_[from][to] * static_cast<double>(samples);
      if (bytes == 0) continue;
      const std::vector<DeviceId>& a = partition_.groups[from];
      const std::vector<DeviceId>& b = partition_.groups[to];
      const Cluster& cluster = problem_.cluster;
      const bool inside =
          cluster.devices[at(a.front())].host == cluster.devices[at(b.front())].host;
      const std::size_t lanes = inside ? std::min(a.size(), b.size())
                                       : std::min(hosts_of(cluster, a), hosts_of(cluster, b));
      const auto lane_bytes = static_cast<std::int64_t>(bytes / static_cast<double>(lanes));
      slowest = std::max(
          slowest, lone_seconds(cluster, transfer(cluster, a.front(), b.front(), lane_bytes)));
    }
    return slowest;
  }

  double all_reduce_seconds(std::size_t stage, const StageSpec& spec) const {
    if (spec.devices.size() < 2 || gradient_bytes_[stage] == 0) return 0;
    const std::int64_t bytes = gradient_bytes_[stage];
    double best = std::numeric_limits<double>::infinity();
    for (const AllReduce algorithm : {AllReduce::kRing, AllReduce::kHierarchical}) {
      best = std::min(best,
                      lone_seconds(problem_.cluster,
                                   all_reduce(problem_.cluster, spec.devices, algorithm, bytes)));
    }
    return best;
  }

  const Problem& problem_;
  const Partition& partition_;
  std::vector<StageTimer> timers_;
  Strategy strategy_;
  std::vector<std::int64_t> gradient_bytes_;
  std::vector<std::vector<double>> bytes_per_sample_;  // from stage, to stage
};

}  // namespace

std::vector<std::int64_t> micro_batch_counts(const Problem& problem, int stages) {
  if (problem.options.micro_batches > 0) return {problem.options.micro_batches};
  const std::vector<std::int64_t> all = micro_batch_numbers(problem.training.batch);
  std::vector<std::int64_t> counts;
  for (const int factor : {1, 2, 4, 8}) {
    const auto found = std::lower_bound(all.begin(), all.end(), factor * stages);
    if (found == all.end() || (!counts.empty() && counts.back() == *found)) continue;
    counts.push_back(*found);
  }
  if (counts.empty()) counts.push_back(all.back());
  return counts;
}

std::vector<Candidate> pipelines(const Problem& problem, const Partition& partition,
                                 const std::vector<std::int64_t>& counts) {
  PartitionCosts costs(problem, partition);
  std::vector<Candidate> candidates;
  for (const std::int64_t count : counts) candidates.push_back(costs.with(count));
  return candidates;
}

bool fits(const Problem& problem, const Strategy& strategy) {
  return Evaluator(problem).lacking(strategy) <= 0;
}

Result<std::vector<Strategy>> thin_out(const Problem& problem, std::vector<Candidate> candidates,
                                       std::size_t most) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     const bool long_a = is_long(a.strategy), long_b = is_long(b.strategy);
                     return long_a != long_b ? long_b : a.rough_seconds < b.rough_seconds;
                   });
  Evaluator evaluator(problem);
  std::vector<Strategy> kept;
  Strategy nearest;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (Candidate& candidate : candidates) {
    if (kept.size() == most || (!kept.empty() && is_long(candidate.strategy))) break;
    const std::int64_t lacking = evaluator.lacking(candidate.strategy);
    if (lacking <= 0) {
      kept.push_back(std::move(candidate.strategy));
    } else if (lacking < least) {
      least = lacking;
      nearest = std::move(candidate.strategy);
    }
  }
  if (kept.empty() && !nearest.stages.empty()) kept.push_back(std::move(nearest));
  return kept;
}

}  // namespace agpcs
