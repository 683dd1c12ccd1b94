// SPDX-License-Identifier: Apache-2.0
// Data parallelism: one stage. For each set of devices worth trying (`device_sets`), shares by
// speed and the fewest micro-batches whose memory suffices: more of them only add launches.
#include "planner/candidates.h"
#include "planner/device_groups.h"
#include "planner/seeder.h"
#include "planner/shares.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

using MakeStage = std::function<StageSpec(std::int64_t samples)>;

/// Counts of micro-batches that leave every device at least a sample on average, ascending.
std::vector<std::int64_t> counts_for(const Problem& problem, std::size_t devices) {
  if (problem.options.micro_batches > 0) return {problem.options.micro_batches};
  std::vector<std::int64_t> counts = micro_batch_numbers(problem.training.batch);
  std::erase_if(counts, [&](std::int64_t count) {
    return count > 1 && problem.training.batch / count < static_cast<std::int64_t>(devices);
  });
  return counts;
}

Strategy one_stage(const Problem& problem, std::int64_t micro_batches, const MakeStage& make) {
  Strategy strategy;
  strategy.stage_of.assign(problem.graph.ops.size(), 0);
  strategy.micro_batches = micro_batches;
  strategy.stages.push_back(make(problem.training.batch / micro_batches));
  return strategy;
}

/// The strategy with the fewest micro-batches that fits; with the most where none does. Memory
/// falls with the number of micro-batches, so the first that fits is found by bisection.
Result<Strategy> fewest_micro_batches(const Problem& problem, std::size_t devices,
                                      const MakeStage& make) {
  const std::vector<std::int64_t> counts = counts_for(problem, devices);
  std::size_t low = 0, high = counts.size() - 1;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    const bool enough = fits(problem, one_stage(problem, counts[middle], make));
    (enough ? high : low) = enough ? middle : middle + 1;
  }
  return one_stage(problem, counts[low], make);
}

class DataParallelSeeder : public Seeder {
 public:
  std::string_view name() const override { return "data_parallel"; }

  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    StageTimer timer(problem, all_ops(problem));
    std::vector<Strategy> strategies;
    for (const std::vector<DeviceId>& devices : device_sets(problem.cluster)) {
      const auto make = [&](std::int64_t samples) {
        return balanced_stage(problem, timer, devices, samples);
      };
      AGPCS_TRY(Strategy strategy, fewest_micro_batches(problem, devices.size(), make));
      strategies.push_back(std::move(strategy));
    }
    return strategies;
  }
};

}  // namespace

std::unique_ptr<Seeder> make_data_parallel_seeder() {
  return std::make_unique<DataParallelSeeder>();
}

Result<Strategy> plain_data_parallelism(const Problem& problem) {
  std::vector<DeviceId> devices(static_cast<std::size_t>(problem.cluster.device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  return fewest_micro_batches(problem, devices.size(),
                              [&](std::int64_t samples) { return equal_stage(devices, samples); });
}

}  // namespace agpcs
