// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/fit_memory.h"

#include "ir/base/at.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

class StageFitter {
 public:
  StageFitter(const Problem& problem, Evaluator& evaluator, const Strategy& strategy, int stage,
              std::vector<OpId> ops)
      : problem_(problem),
        evaluator_(evaluator),
        strategy_(strategy),
        spec_(strategy.stages[at(stage)]),
        stage_(stage),
        timer_(problem, std::move(ops)) {
    for (const std::int64_t share : spec_.shares) samples_ += share;
  }

  std::optional<StageSpec> run() {
    std::optional<StageSpec> best;
    double seconds = 0;
    for (const bool recompute : {false, true}) {
      std::optional<StageSpec> spec = with(recompute);
      if (!spec) continue;
      spec->recompute = recompute;
      const double slowest = slowest_seconds(problem_, timer_, *spec);
      if (best && seconds <= slowest) continue;
      seconds = slowest;
      best = std::move(spec);
    }
    return best;
  }

 private:
  std::optional<StageSpec> with(bool recompute) {
    std::vector<std::int64_t> most;
    bool enough = true;
    std::map<int, std::int64_t> most_of;  // by kind
    for (std::size_t i = 0; i < spec_.devices.size(); ++i) {
      const int kind = problem_.cluster.devices[at(spec_.devices[i])].kind;
      const auto [entry, added] = most_of.try_emplace(kind);
      if (added) entry->second = most_samples(kind, recompute);
      most.push_back(entry->second);
      enough = enough && spec_.shares[i] <= most.back();
    }
    if (enough) return spec_;
    return balanced_stage_within(problem_, timer_, spec_.devices, samples_, most);
  }

  /// Returns the most samples of a micro-batch for which a device of this kind has room.
  std::int64_t most_samples(int kind, bool recompute) {
    const std::int64_t room = problem_.cluster.kinds[at(kind)].memory_bytes;
    const auto enough = [&](std::int64_t samples) {
      return evaluator_.replica_bytes(strategy_, stage_, samples, recompute) <= room;
    };
    if (enough(samples_)) return samples_;
    std::int64_t low = 0, high = samples_;
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (enough(middle) ? low : high) = middle;
    }
    return low;
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  const Strategy& strategy_;
  const StageSpec& spec_;
  int stage_;
  std::int64_t samples_ = 0;
  StageTimer timer_;
};

/// Returns whether a device of the stage lacks memory.
bool lacks(const Problem& problem, Evaluator& evaluator, const Strategy& strategy, int stage) {
  const StageSpec& spec = strategy.stages[at(stage)];
  std::map<int, std::int64_t> largest;  // largest share by kind
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    std::int64_t& share = largest[problem.cluster.devices[at(spec.devices[i])].kind];
    share = std::max(share, spec.shares[i]);
  }
  for (const auto& [kind, samples] : largest) {
    const std::int64_t bytes = evaluator.replica_bytes(strategy, stage, samples, spec.recompute);
    if (bytes > problem.cluster.kinds[at(kind)].memory_bytes) return true;
  }
  return false;
}

}  // namespace

bool fit_memory(const Problem& problem, Evaluator& evaluator, Strategy& strategy) {
  const int stages = static_cast<int>(strategy.stages.size());
  std::vector<std::vector<OpId>> ops = ops_of_stages(strategy.stage_of, stages);
  Strategy fitted = strategy;
  for (int stage = 0; stage < stages; ++stage) {
    if (!lacks(problem, evaluator, strategy, stage)) continue;
    StageFitter fitter(problem, evaluator, strategy, stage, std::move(ops[at(stage)]));
    std::optional<StageSpec> spec = fitter.run();
    if (!spec) return false;
    fitted.stages[at(stage)] = *std::move(spec);
  }
  // A stage left with a single device has other programs, so the whole strategy is judged again.
  if (evaluator.lacking(fitted) > 0) return false;
  strategy = std::move(fitted);
  return true;
}

}  // namespace agpcs
