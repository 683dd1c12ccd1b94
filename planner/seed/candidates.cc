// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/candidates.h"

#include "planner/evaluate/evaluator.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/problem/stage_timers.h"
#include "planner/seed/fit_memory.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int64_t kManyPasses = 16384;

/// Holds everything about a partition that does not depend on the number of micro-batches.
class PipelineMaker {
 public:
  PipelineMaker(RoughModel& model, const Partition& partition)
      : model_(model), problem_(model.problem()), groups_(partition.groups), timers_(problem_) {
    strategy_.stage_of = stage_of_ops(problem_.blocks, partition.stage_of_block);
    strategy_.stages.resize(groups_.size());
    timer_of_ = timers_.of(strategy_);
  }

  /// Adds a candidate with 1F1B, and one with GPipe if that is roughly faster.
  void add(std::int64_t micro_batches, std::vector<Candidate>& candidates) {
    Candidate candidate{strategy_, 0};
    candidate.strategy.micro_batches = micro_batches;
    const std::int64_t samples = largest_micro_batch(problem_, micro_batches);
    for (std::size_t s = 0; s < groups_.size(); ++s) {
      candidate.strategy.stages[s] = balanced_stage(problem_, *timer_of_[s], groups_[s], samples);
    }
    candidate.rough_seconds = model_.step(candidate.strategy, timer_of_).seconds;
    candidates.push_back(candidate);
    candidate.strategy.schedule = Schedule::kGPipe;
    candidate.rough_seconds = model_.step(candidate.strategy, timer_of_).seconds;
    if (candidate.rough_seconds < 0.99 * candidates.back().rough_seconds) {
      candidates.push_back(std::move(candidate));
    }
  }

 private:
  RoughModel& model_;
  const Problem& problem_;
  const DeviceGroups& groups_;
  StageTimers timers_;
  std::vector<StageTimer*> timer_of_;  // by stage
  Strategy strategy_;                  // all but its stages, which are empty
};

}  // namespace

bool is_long(std::int64_t stages, std::int64_t micro_batches) {
  return stages * micro_batches > kManyPasses;
}

std::vector<std::int64_t> micro_batch_counts(const Problem& problem, int stages) {
  if (problem.options.micro_batches > 0) return {problem.options.micro_batches};
  const std::vector<std::int64_t> all = micro_batch_numbers(problem.training.batch);
  std::vector<std::int64_t> counts;
  // One micro-batch is for graphs whose branches compute side by side.
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

std::vector<Candidate> pipelines(RoughModel& model, const Partition& partition,
                                 const std::vector<std::int64_t>& counts) {
  PipelineMaker maker(model, partition);
  std::vector<Candidate> candidates;
  for (const std::int64_t count : counts) maker.add(count, candidates);
  return candidates;
}

namespace {

/// Judges candidates in order of their rough seconds; long ones come last.
class Thinner {
 public:
  Thinner(RoughModel& model, Evaluator& evaluator, std::vector<Candidate> candidates,
          std::size_t most, Relief relief)
      : model_(model),
        evaluator_(evaluator),
        problem_(model.problem()),
        candidates_(std::move(candidates)),
        most_(most),
        relief_(relief),
        timers_(problem_) {
    for (std::size_t i = 0; i < candidates_.size(); ++i) add(i, candidates_[i].rough_seconds);
  }

  std::vector<Strategy> run() {
    while (!waiting_.empty() && kept_.size() < (passes_ < kFewPasses ? 3 * most_ : most_)) {
      const auto [has_many_passes, seconds, index] = *waiting_.begin();
      waiting_.erase(waiting_.begin());
      if (has_many_passes && !kept_.empty()) break;
      judge(candidates_[index], index, seconds);
    }
    if (kept_.empty() && !nearest_.stages.empty()) {
      if (relief_ != Relief::kNever) fit_with_fewer_in_flight(problem_, evaluator_, nearest_);
      kept_.push_back(std::move(nearest_));
    }
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
    take_if_nearer(candidate.strategy, lacking);
    if (relief_ == Relief::kNever || reliefs_ == kMostReliefs) return;
    ++reliefs_;
    if (!fit_memory(problem_, evaluator_, candidate.strategy)) {
      if (!kept_.empty()) return;
      need_least_memory(problem_, evaluator_, candidate.strategy);
      take_if_nearer(candidate.strategy, evaluator_.lacking(candidate.strategy));
      return;
    }
    const RoughStep rough = model_.step(candidate.strategy, timers_.of(candidate.strategy));
    candidate.rough_seconds = std::max(seconds, rough.seconds);
    add(index, candidate.rough_seconds);
  }

  void take_if_nearer(const Strategy& strategy, std::int64_t lacking) {
    if (lacking >= least_) return;
    least_ = lacking;
    nearest_ = strategy;
  }

  static constexpr int kMostReliefs = 48;
  /// While all that is kept has fewer passes of micro-batches than this, three times as many are
  /// kept: to simulate them takes milliseconds, and the rough seconds are not exact.
  static constexpr std::int64_t kFewPasses = 10'000;

  RoughModel& model_;
  Evaluator& evaluator_;
  const Problem& problem_;
  std::vector<Candidate> candidates_;
  std::size_t most_;
  Relief relief_;
  StageTimers timers_;
  std::set<std::tuple<bool, double, std::size_t>> waiting_;
  std::vector<Strategy> kept_;
  Strategy nearest_;
  std::int64_t least_ = std::numeric_limits<std::int64_t>::max();
  int reliefs_ = 0;
  std::int64_t passes_ = 0;
};

}  // namespace

Result<std::vector<Strategy>> thin_out(RoughModel& model, Evaluator& evaluator,
                                       std::vector<Candidate> candidates, std::size_t most,
                                       Relief relief) {
  return Thinner(model, evaluator, std::move(candidates), most, relief).run();
}

}  // namespace agpcs
