// SPDX-License-Identifier: Apache-2.0
#include "planner/candidates.h"

#include "cost_model/link_model.h"
#include "ir/plan_graph.h"
#include "planner/evaluator.h"
#include "planner/fit_memory.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

std::size_t at(int id) { return static_cast<std::size_t>(id); }

std::size_t hosts_of(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  std::set<int> hosts;
  for (const DeviceId device : devices) hosts.insert(cluster.devices[at(device)].host);
  return hosts.size();
}

constexpr std::int64_t kManyPasses = 16384;

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
    add_gradients();
    bytes_per_sample_.assign(at(stages), std::vector<double>(at(stages)));
    const double samples = static_cast<double>(problem.blocks.samples);
    for_each_crossing(problem.graph, stage_of, [&](int from, int to, TensorId id) {
      const Tensor& tensor = problem.graph.tensor(id);
      bytes_per_sample_[at(from)][at(to)] +=
          static_cast<double>(elements_at(tensor.shape, problem.blocks.samples)) *
          static_cast<double>(element_bytes(tensor.type, problem.training.precision)) / samples;
    });
  }

  /// With 1F1B; and with GPipe where that is roughly faster.
  void add(std::int64_t micro_batches, std::vector<Candidate>& candidates) {
    Candidate candidate{strategy_, 0};
    candidate.strategy.micro_batches = micro_batches;
    const std::int64_t samples = problem_.training.batch / micro_batches;
    for (std::size_t s = 0; s < timers_.size(); ++s) {
      candidate.strategy.stages.push_back(
          balanced_stage(problem_, timers_[s], partition_.groups[s], samples));
    }
    candidate.rough_seconds = rough_seconds(candidate.strategy);
    candidates.push_back(candidate);
    candidate.strategy.schedule = Schedule::kGPipe;
    candidate.rough_seconds = rough_seconds(candidate.strategy);
    if (candidate.rough_seconds < 0.99 * candidates.back().rough_seconds) {
      candidates.push_back(std::move(candidate));
    }
  }

  double rough_seconds(const Strategy& strategy) {
    const std::int64_t samples = problem_.training.batch / strategy.micro_batches;
    const std::size_t stages = timers_.size();
    std::vector<double> way(stages);  // of a micro-batch from a stage to the last one and back
    double longest = 0, pace = 0, late = 0;
    for (std::size_t s = stages; s-- > 0;) {
      const StageSpec& spec = strategy.stages[s];
      const double seconds = slowest_seconds(problem_, timers_[s], spec);
      for (std::size_t to = s + 1; to < stages; ++to) {
        if (bytes_per_sample_[s][to] == 0) continue;
        const double cut = cut_seconds(s, to, samples);
        way[s] = std::max(way[s], way[to] + 2 * cut);
        pace = std::max(pace, cut);
      }
      way[s] += seconds;
      longest = std::max(longest, way[s]);
      pace = std::max(pace, seconds);
      late = std::max(late, all_reduce_seconds(s, spec) - seconds / 2);
      const auto in_flight = static_cast<std::int64_t>(stages - s);
      if (strategy.schedule == Schedule::k1F1B && strategy.micro_batches > in_flight) {
        pace = std::max(pace, way[s] / static_cast<double>(in_flight));
      }
    }
    return longest + static_cast<double>(strategy.micro_batches - 1) * pace + late;
  }

 private:
  void add_gradients() {
    gradient_bytes_.assign(partition_.groups.size(), 0);
    const std::vector<std::int64_t> by_block = gradient_bytes(problem_);
    for (std::size_t block = 0; block < by_block.size(); ++block) {
      gradient_bytes_[at(partition_.stage_of_block[block])] += by_block[block];
    }
  }

  /// The transfer of one micro-batch from stage to stage, replicas side by side.
  double cut_seconds(std::size_t from, std::size_t to, std::int64_t samples) const {
    const double bytes = bytes_per_sample_[from][to] * static_cast<double>(samples);
    const std::vector<DeviceId>& a = partition_.groups[from];
    const std::vector<DeviceId>& b = partition_.groups[to];
    const Cluster& cluster = problem_.cluster;
    const std::size_t lanes = lanes_between(cluster, a, b);
    const auto lane_bytes = static_cast<std::int64_t>(bytes / static_cast<double>(lanes));
    return lone_seconds(cluster, transfer(cluster, a.front(), b.front(), lane_bytes));
  }

  double all_reduce_seconds(std::size_t stage, const StageSpec& spec) const {
    if (spec.devices.size() < 2 || gradient_bytes_[stage] == 0) return 0;
    return agpcs::all_reduce_seconds(problem_.cluster, spec.devices, gradient_bytes_[stage]);
  }

  const Problem& problem_;
  const Partition& partition_;
  std::vector<StageTimer> timers_;
  Strategy strategy_;
  std::vector<std::int64_t> gradient_bytes_;
  std::vector<std::vector<double>> bytes_per_sample_;  // from stage, to stage
};

}  // namespace

bool is_long(std::int64_t stages, std::int64_t micro_batches) {
  return stages * micro_batches > kManyPasses;
}

std::vector<std::int64_t> micro_batch_counts(const Problem& problem, int stages) {
  if (problem.options.micro_batches > 0) return {problem.options.micro_batches};
  const std::vector<std::int64_t> all = micro_batch_numbers(problem.training.batch);
  std::vector<std::int64_t> counts;
  // One is for graphs whose branches compute side by side.
  if (stages > 1) counts.push_back(1);
  for (const int factor : {1, 2, 4, 8}) {
    const auto found = std::lower_bound(all.begin(), all.end(), factor * stages);
    if (found == all.end() || (!counts.empty() && counts.back() == *found)) continue;
    counts.push_back(*found);
  }
  const bool none = counts.size() == (stages > 1 ? 1 : 0);
  if (none && (counts.empty() || all.back() > 1)) counts.push_back(all.back());
  return counts;
}

std::size_t lanes_between(const Cluster& cluster, const std::vector<DeviceId>& a,
                          const std::vector<DeviceId>& b) {
  const bool inside = cluster.devices[at(a.front())].host == cluster.devices[at(b.front())].host;
  return inside ? std::min(a.size(), b.size())
                : std::min(hosts_of(cluster, a), hosts_of(cluster, b));
}

double all_reduce_seconds(const Cluster& cluster, const std::vector<DeviceId>& devices,
                          std::int64_t bytes) {
  double best = std::numeric_limits<double>::infinity();
  for (const AllReduce algorithm : kAllReduces) {
    best = std::min(best, lone_seconds(cluster, all_reduce(cluster, devices, algorithm, bytes)));
  }
  return best;
}

std::vector<std::int64_t> gradient_bytes(const Problem& problem) {
  std::vector<std::int64_t> bytes(problem.blocks.blocks.size());
  for (const TensorId id : problem.graph.parameters()) {
    const Tensor& parameter = problem.graph.tensor(id);
    if (!parameter.needs_gradient) continue;
    const DType held = held_type(parameter.type, problem.training.precision);
    bytes[at(problem.blocks.block_of[at(parameter.consumers.front())])] +=
        elements_at(parameter.shape, 1) * static_cast<std::int64_t>(size_of(held));
  }
  return bytes;
}

std::vector<Candidate> pipelines(const Problem& problem, const Partition& partition,
                                 const std::vector<std::int64_t>& counts) {
  PartitionCosts costs(problem, partition);
  std::vector<Candidate> candidates;
  for (const std::int64_t count : counts) costs.add(count, candidates);
  return candidates;
}

namespace {

/// Of a strategy whose stages are made of blocks.
double rough_seconds(const Problem& problem, const Strategy& strategy) {
  Partition partition;
  for (const Block& block : problem.blocks.blocks) {
    partition.stage_of_block.push_back(strategy.stage_of[at(block.ops.front())]);
  }
  for (const StageSpec& spec : strategy.stages) partition.groups.push_back(spec.devices);
  return PartitionCosts(problem, partition).rough_seconds(strategy);
}

/// Candidates in order of their rough seconds; those that are long come last.
class Thinner {
 public:
  Thinner(const Problem& problem, std::vector<Candidate> candidates, std::size_t most,
          Relief relief)
      : problem_(problem),
        candidates_(std::move(candidates)),
        most_(most),
        relief_(relief),
        evaluator_(problem) {
    for (std::size_t i = 0; i < candidates_.size(); ++i) add(i, candidates_[i].rough_seconds);
  }

  std::vector<Strategy> run() {
    while (!waiting_.empty() && kept_.size() < (passes_ < kFewPasses ? 3 * most_ : most_)) {
      const auto [has_many_passes, seconds, index] = *waiting_.begin();
      waiting_.erase(waiting_.begin());
      if (has_many_passes && !kept_.empty()) break;
      judge(candidates_[index], index, seconds);
    }
    if (kept_.empty() && !nearest_.stages.empty()) kept_.push_back(std::move(nearest_));
    return std::move(kept_);
  }

 private:
  void add(std::size_t index, double seconds) {
    const Strategy& strategy = candidates_[index].strategy;
    const auto stages = static_cast<std::int64_t>(strategy.stages.size());
    waiting_.emplace(is_long(stages, strategy.micro_batches), seconds, index);
  }

  void judge(Candidate& candidate, std::size_t index, double seconds) {
    const std::int64_t lacking = evaluator_.lacking(candidate.strategy);
    if (lacking <= 0) {
      if (std::find(kept_.begin(), kept_.end(), candidate.strategy) != kept_.end()) return;
      for (const StageSpec& stage : candidate.strategy.stages) {
        passes_ +=
            candidate.strategy.micro_batches * static_cast<std::int64_t>(stage.devices.size());
      }
      kept_.push_back(std::move(candidate.strategy));
      return;
    }
    if (lacking < least_) {
      least_ = lacking;
      nearest_ = candidate.strategy;
    }
    if (relief_ == Relief::kNever || reliefs_ == kMostReliefs) return;
    ++reliefs_;
    if (!fit_memory(problem_, evaluator_, candidate.strategy)) return;
    candidate.rough_seconds = std::max(seconds, rough_seconds(problem_, candidate.strategy));
    add(index, candidate.rough_seconds);
  }

  static constexpr int kMostReliefs = 48;
  /// As long as all that is kept has so few passes of micro-batches, three times as much is: to
  /// simulate it takes milliseconds, and the rough seconds do not know best.
  static constexpr std::int64_t kFewPasses = 10'000;

  const Problem& problem_;
  std::vector<Candidate> candidates_;
  std::size_t most_;
  Relief relief_;
  Evaluator evaluator_;
  std::set<std::tuple<bool, double, std::size_t>> waiting_;
  std::vector<Strategy> kept_;
  Strategy nearest_;
  std::int64_t least_ = std::numeric_limits<std::int64_t>::max();
  int reliefs_ = 0;
  std::int64_t passes_ = 0;
};

}  // namespace

Result<std::vector<Strategy>> thin_out(const Problem& problem, std::vector<Candidate> candidates,
                                       std::size_t most, Relief relief) {
  return Thinner(problem, std::move(candidates), most, relief).run();
}

}  // namespace agpcs
