// SPDX-License-Identifier: Apache-2.0
#include "planner/first_plan.h"

#include "ir/base/at.h"
#include "planner/evaluate/rough/step.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/seed/candidates.h"
#include "planner/seed/even_row.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/linear_costs.h"
#include "planner/seed/seeder.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kMostPieces = 192;
constexpr int kMostStagesOfFirst = 96;    // of more stages a step takes long to simulate
constexpr int kTriesOfRow = 6;            // numbers of stages
constexpr std::int64_t kFillOfFirst = 4;  // micro-batches a stage, where memory allows so few
/// What the first cut of a row leaves free counts for little, as it is the most
/// that fits.
constexpr double kPartsOfMemoryOfFirst[] = {0.95, 0.8};

/// Returns the devices, those of kinds with the most memory first, and where
/// each kind ends.
std::vector<DeviceId> by_memory(const Cluster& cluster, std::vector<std::size_t>& ends) {
  const auto memory = [&](DeviceId id) {
    return cluster.kinds[at(cluster.devices[at(id)].kind)].memory_bytes;
  };
  std::vector<DeviceId> devices(at(cluster.device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  std::stable_sort(devices.begin(), devices.end(),
                   [&](DeviceId a, DeviceId b) { return memory(a) > memory(b); });
  for (std::size_t i = 1; i <= devices.size(); ++i) {
    if (i == devices.size() || memory(devices[i]) < memory(devices[i - 1])) ends.push_back(i);
  }
  return devices;
}

/// Tries pipelines until one fits.
class FirstPipeline {
 public:
  FirstPipeline(const Problem& problem, Evaluator& evaluator)
      : problem_(problem),
        evaluator_(evaluator),
        sums_(problem, piece_bounds(problem.blocks, kMostPieces)),
        lines_(problem.cluster),
        model_(problem) {}

  std::optional<Strategy> find() {
    std::vector<std::size_t> ends;
    const std::vector<DeviceId> devices = by_memory(problem_.cluster, ends);
    for (const bool offload : {false, true}) {
      if (offload && !may_use_hosts(problem_)) break;
      offload_ = offload;
      for (const std::size_t end : ends) {
        auto found = on({devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(end)});
        if (found) return found;
      }
    }
    return std::nullopt;
  }

 private:
  /// Begins with as many stages as parameters and optimizer state need at least.
  std::optional<Strategy> on(const std::vector<DeviceId>& devices) {
    const DeviceKind& least =
        problem_.cluster.kinds[at(problem_.cluster.devices[at(devices.back())].kind)];
    const double needed = sums_.resident_bytes(offload_) /
                          static_cast<double>(std::max<std::int64_t>(1, least.memory_bytes));
    const int most =
        std::min({static_cast<int>(devices.size()), sums_.pieces(), kMostStagesOfFirst});
    int stages = std::max(2, static_cast<int>(std::min<double>(needed, kMostStagesOfFirst)) + 1);
    for (int tries = 0; tries < kTriesOfRow && stages <= most; ++tries) {
      if (auto found = of(stages, devices)) return found;
      stages += std::max(1, stages / 4);
    }
    return std::nullopt;
  }

  std::optional<Strategy> of(int stages, const std::vector<DeviceId>& devices) {
    const int replicas = static_cast<int>(devices.size()) / stages;
    EvenRow row(problem_, sums_, lines_, devices, replicas, stages);
    for (const std::int64_t number : micro_batches(stages, replicas)) {
      for (const double part : kPartsOfMemoryOfFirst) {
        const std::vector<int> bounds = row.cut(stages, number, part, offload_).bounds;
        if (bounds.size() < 3) break;
        if (auto found = fitting(row, bounds, number)) return found;
      }
    }
    return std::nullopt;
  }

  /// Returns a number that fills the pipeline, and one with about a sample a device.
  std::vector<std::int64_t> micro_batches(int stages, int replicas) const {
    if (problem_.options.micro_batches > 0) return {problem_.options.micro_batches};
    std::vector<std::int64_t> all = micro_batch_numbers(problem_.training.batch);
    std::erase_if(all, [&](std::int64_t number) {
      return number > 1 && number > problem_.training.batch / replicas;
    });
    const auto fills = std::find_if(all.begin(), all.end(), [&](std::int64_t number) {
      return number >= kFillOfFirst * stages;
    });
    if (fills == all.end() || *fills == all.back()) return {all.back()};
    return {*fills, all.back()};
  }

  std::optional<Strategy> fitting(const EvenRow& row, const std::vector<int>& bounds,
                                  std::int64_t micro_batches) {
    Partition partition;
    partition.stage_of_block.assign(at(problem_.blocks.size()), 0);
    for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
      partition.groups.push_back(row.groups()[s]);
      std::fill(partition.stage_of_block.begin() + sums_.bounds()[at(bounds[s])],
                partition.stage_of_block.begin() + sums_.bounds()[at(bounds[s + 1])],
                static_cast<int>(s));
    }
    Strategy strategy = std::move(pipelines(model_, partition, {micro_batches}).front().strategy);
    if (evaluator_.lacking(strategy) <= 0 || fit_memory(problem_, evaluator_, strategy)) {
      return strategy;
    }
    return std::nullopt;
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  PieceSums sums_;
  EvenLines lines_;
  RoughModel model_;
  bool offload_ = false;  // stages may have their state in the memory of hosts
};

}  // namespace

std::optional<FirstPlan> first_plan(const Problem& problem, Evaluator& evaluator) {
  Strategy plain = data_parallelism_by_speed(problem, evaluator);
  if (evaluator.lacking(plain) <= 0) return FirstPlan{std::move(plain), "data_parallel"};
  if (problem.cluster.device_count() < 2 || problem.blocks.size() < 2) return std::nullopt;
  std::optional<Strategy> pipeline = FirstPipeline(problem, evaluator).find();
  if (!pipeline) return std::nullopt;
  return FirstPlan{*std::move(pipeline), "even"};
}

}  // namespace agpcs
