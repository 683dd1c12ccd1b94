// SPDX-License-Identifier: Apache-2.0
// METIS: for each way to divide the devices into groups, it makes k-way partitions of the block
// graph whose target weights are the groups' speeds, and makes them convex. It does so with several
// tolerances of imbalance, for the bytes that are cut and for those that are sent. The candidates
// differ in grouping, partition and number of micro-batches; it returns those that are roughly
// fastest. It leaves out ways with more than kMostGroups groups.
#include "planner/seed/candidates.h"
#include "planner/seed/metis_partition.h"
#include "planner/seed/seeder.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kMetisKept = 6;
constexpr int kImbalances[] = {30, 100, 300};  // thousandths of a part's target

/// Returns each group's part of the whole cluster's speed.
std::vector<double> targets_of(const Problem& problem, const DeviceGroups& groups) {
  std::vector<double> targets;
  for (const std::vector<DeviceId>& group : groups) {
    double speed = 0;
    for (const DeviceId device : group) {
      const int kind = problem.cluster.devices[static_cast<std::size_t>(device)].kind;
      speed += problem.costs.speed(kind, problem.blocks.samples);
    }
    targets.push_back(speed);
  }
  const double sum = std::accumulate(targets.begin(), targets.end(), 0.0);
  for (double& target : targets) target /= sum;
  return targets;
}

/// Renumbers stages so that none is empty, and gives each stage the group that its part was made
/// for.
Partition without_empty_stages(const std::vector<int>& stage_of_block,
                               const std::vector<int>& order, const DeviceGroups& groups) {
  std::vector<int> new_number(groups.size(), -1);
  for (const int stage : stage_of_block) new_number[static_cast<std::size_t>(stage)] = 0;
  Partition partition;
  for (std::size_t stage = 0; stage < groups.size(); ++stage) {
    if (new_number[stage] < 0) continue;
    new_number[stage] = static_cast<int>(partition.groups.size());
    partition.groups.push_back(groups[static_cast<std::size_t>(order[stage])]);
  }
  for (const int stage : stage_of_block) {
    partition.stage_of_block.push_back(new_number[static_cast<std::size_t>(stage)]);
  }
  return partition;
}

/// Returns METIS's parts made convex. If that leaves a group without work, as long skip connections
/// may, it adds the plain cut of the topological order in METIS's order of groups.
std::vector<Partition> convex_partitions(const Problem& problem, const std::vector<int>& parts,
                                         const std::vector<double>& targets,
                                         const DeviceGroups& groups) {
  std::vector<int> order;
  const std::vector<int> stages = make_convex(problem.blocks, parts, targets, order);
  std::vector<Partition> partitions = {without_empty_stages(stages, order, groups)};
  if (partitions.front().groups.size() == groups.size()) return partitions;
  std::vector<double> ordered_targets;
  for (const int part : order) ordered_targets.push_back(targets[static_cast<std::size_t>(part)]);
  const std::vector<int> cut = cut_at_targets(problem.blocks, ordered_targets);
  partitions.push_back(without_empty_stages(cut, order, groups));
  return partitions;
}

class MetisSeeder : public Seeder {
 public:
  std::string_view name() const override { return "metis"; }

  Result<std::vector<Strategy>> seed(const Problem& problem, Rng rng) const override {
    RoughModel model(problem);
    std::vector<Candidate> candidates;
    for (const DeviceGroups& groups : groupings(problem.cluster)) {
      if (groups.size() > std::min(problem.blocks.blocks.size(), kMostGroups)) continue;
      AGPCS_TRY(const std::vector<Partition> partitions, partitions_of(problem, groups, rng));
      for (const Partition& partition : partitions) {
        const auto counts = micro_batch_counts(problem, static_cast<int>(partition.groups.size()));
        for (Candidate& candidate : pipelines(model, partition, counts)) {
          candidates.push_back(std::move(candidate));
        }
        if (unwanted()) return std::vector<Strategy>();
      }
    }
    Evaluator evaluator(problem);
    return thin_out(model, evaluator, std::move(candidates), kMetisKept);
  }

 private:
  /// Returns the partitions for all tolerances and objectives, each once.
  static Result<std::vector<Partition>> partitions_of(const Problem& problem,
                                                      const DeviceGroups& groups, Rng& rng) {
    const std::vector<double> targets = targets_of(problem, groups);
    std::vector<Partition> result;
    MetisOptions options;
    options.seed = rng.next();
    for (const MetisObjective objective : {MetisObjective::kCut, MetisObjective::kVolume}) {
      for (const int imbalance : kImbalances) {
        options.objective = objective;
        options.imbalance = imbalance;
        AGPCS_TRY(const std::vector<int> parts, metis_partition(problem.blocks, targets, options));
        for (Partition& partition : convex_partitions(problem, parts, targets, groups)) {
          const bool known = std::any_of(result.begin(), result.end(), [&](const Partition& p) {
            return p.stage_of_block == partition.stage_of_block && p.groups == partition.groups;
          });
          if (!known && partition.groups.size() > 1) result.push_back(std::move(partition));
        }
      }
    }
    return result;
  }
};

}  // namespace

std::unique_ptr<Seeder> make_metis_seeder() { return std::make_unique<MetisSeeder>(); }

}  // namespace agpcs
