// SPDX-License-Identifier: Apache-2.0
// best_in_whole_space: every strategy of a small problem in the whole space, as far as bounds do
// not exclude it.
#include "ir/base/at.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/segments.h"
#include "tests/bench/planning/skeletons.h"
#include "tests/bench/planning/small_cases.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace agpcs::bench {
namespace {

/// What a stage keeps on its devices.
struct Kept {
  Recomputation recompute;
  StateLevel state = StateLevel::kWhole;
  bool state_in_host = false;
};

/// Whether `less` changes the stage in no way in which `more` does not: it takes no longer.
bool is_part_of(const Recomputation& less, const Recomputation& more) {
  if (!less) return true;
  return more && less.segments == more.segments && less.kept >= more.kept &&
         less.again <= more.again && less.in_host <= more.in_host;
}
bool is_part_of(const Kept& less, const Kept& more) {
  return less.state == more.state && less.state_in_host <= more.state_in_host &&
         is_part_of(less.recompute, more.recompute);
}

/// The schedules of `strategy`: those of `schedules_of`, and all but GPipe with parted backward
/// passes.
std::vector<Strategy> all_schedules_of(const Strategy& strategy) {
  std::vector<Strategy> all = schedules_of(strategy);
  if (all.size() == 1) return all;
  for (std::size_t i = 0, count = all.size(); i < count; ++i) {
    if (all[i].schedule != Schedule::k1F1B) continue;
    all.push_back(all[i]);
    all.back().schedule = Schedule::kZeroBubble;
  }
  return all;
}

/// The part of a backward pass that is its input pass is more: about half of that of a product, all
/// of that of other operators. It is none of a product whose input needs no gradient, which is the
/// first operator here; its stage sends no gradients, and puts no weight pass off.
constexpr double kLeastInput = 0.25;

class WholeSpace : public Skeletons {
 public:
  WholeSpace(const Problem& problem, double below, std::int64_t most_evaluations)
      : Skeletons(problem, below, most_evaluations), segments_(problem.graph) {}

 private:
  int most_rounds() const override { return problem_.blocks.size(); }
  /// Parts of updates and sums of gradients may be elsewhere.
  double bound_of(const Stage& stage) override { return passes_bound(stage); }
  double input_part() const override { return kLeastInput; }

  void try_skeleton() override {
    if (static_cast<std::size_t>(groups_) < stages_.size()) {
      now_.schedule = Schedule::kInterleaved;
      for (StageSpec& spec : now_.stages) spec.in_flight.reset();
      try_form();
      return;
    }
    for (const Strategy& form : all_schedules_of(now_)) {
      const double part = form.schedule == Schedule::kZeroBubble ? kLeastInput : 1;
      if (in_flight_bound(in_flight_by_stage(form), part) >= below()) continue;
      now_ = form;
      try_form();
    }
  }

  void try_form() {
    now_.buckets.clear();
    for (StageSpec& spec : now_.stages) set(spec, {});
    if (now_.schedule != Schedule::kGPipe && now_.schedule != Schedule::k1F1B &&
        !verify_strategy(now_, problem_.graph, problem_.cluster, problem_.training.batch).ok()) {
      return;
    }
    kept_.assign(stages_.size(), {});
    choices_.clear();
    for (std::size_t s = 0; s < stages_.size(); ++s) choices_.push_back(choices_of(s));
    fitting_.clear();
    int most_changes = 0;
    for (const auto& choices : choices_) {
      most_changes += std::max_element(choices.begin(), choices.end(), [](auto& a, auto& b) {
                        return a.changes < b.changes;
                      })->changes;
    }
    // Those that change less come first, so that what is needless is known.
    for (int changes = 0; changes <= most_changes && goes_on(); ++changes) {
      choose_kept(0, changes);
    }
  }

  struct Choice {
    Kept kept;
    int changes = 0;  // a strict part has fewer
  };

  std::vector<Recomputation> recomputations_of(std::size_t s) {
    std::vector<Recomputation> all = {{}};
    const auto operators = static_cast<int>(stages_[s].ops.size());
    const bool hosts = may_offload_activations(problem_);
    for (int number = 1; number <= operators; ++number) {
      const Recomputation every = {number, 0};
      if (number > 1 && segments_.ends(stages_[s].ops, every).size() < at(number)) continue;
      for (int kept = number - 1; kept >= 0; --kept) {
        all.push_back({number, kept, true, false});
        if (!hosts) continue;
        all.push_back({number, kept, false, true});
        all.push_back({number, kept, true, true});
      }
    }
    return all;
  }

  std::vector<Choice> choices_of(std::size_t s) {
    std::vector<Choice> all;
    const bool parted = now_.schedule == Schedule::kZeroBubble;
    const bool one_program = now_.schedule == Schedule::kInterleaved;
    std::vector<StateLevel> levels = {StateLevel::kWhole};
    if (stages_[s].devices.size() > 1 && !stages_[s].each.empty() && !one_program) {
      for (const StateLevel level : kDividingLevels) {
        if (parted && level > StateLevel::kOptimizer) break;
        if (may_divide(problem_, level)) levels.push_back(level);
      }
    }
    for (const Recomputation& recompute : recomputations_of(s)) {
      if (parted && recompute) continue;
      for (const StateLevel level : levels) {
        for (const bool in_host : {false, true}) {
          now_.stages[s].state = level;
          if (in_host && (stages_[s].each.empty() || !may_offload(problem_) ||
                          !why_not_offload(now_, s, problem_.cluster).empty())) {
            continue;
          }
          if (recompute.in_host && level == StateLevel::kParameters) continue;
          const int changes = (recompute ? 1 + recompute.segments - 1 - recompute.kept : 0) +
                              (recompute.again && recompute.in_host ? 1 : 0) + (in_host ? 1 : 0);
          all.push_back({{recompute, level, in_host}, changes});
        }
      }
      now_.stages[s].state = StateLevel::kWhole;
    }
    return all;
  }

  static void set(StageSpec& spec, const Kept& kept) {
    spec.recompute = kept.recompute;
    spec.state = kept.state;
    spec.state_in_host = kept.state_in_host;
  }

  /// Chooses for stages from `s` on, with `changes` changes in all.
  void choose_kept(std::size_t s, int changes) {
    if (!goes_on()) return;
    if (s == stages_.size()) {
      if (changes == 0) try_kept();
      return;
    }
    for (const Choice& choice : choices_[s]) {
      if (choice.changes > changes) continue;
      if (s + 1 == stages_.size() && choice.changes != changes) continue;
      kept_[s] = choice.kept;
      choose_kept(s + 1, changes - choice.changes);
    }
  }

  void try_kept() {
    const bool needless =
        std::any_of(fitting_.begin(), fitting_.end(), [&](const std::vector<Kept>& fitting) {
          for (std::size_t s = 0; s < fitting.size(); ++s) {
            if (!is_part_of(fitting[s], kept_[s])) return false;
          }
          return true;
        });
    if (needless) return;
    bool divides_gradients = false;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      set(now_.stages[s], kept_[s]);
      divides_gradients = divides_gradients || kept_[s].state >= StateLevel::kGradients;
      if (kept_[s].recompute.in_host && !why_not_activations(now_, s, problem_.cluster).empty()) {
        return;
      }
    }
    const std::vector<Stage> stages = longer_stages();
    if (stages.empty()) return;
    now_.buckets.clear();
    const bool fits = evaluator_.lacking(now_) <= 0;
    // Where gradients are divided, other buckets take more or less memory.
    if (!fits && !divides_gradients) return;
    if (fits && !divides_gradients) fitting_.push_back(kept_);
    groupings_.clear();
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const bool divides = kept_[s].state != StateLevel::kWhole;
      // A reduce-scatter takes half of an all-reduce at least.
      groupings_.push_back(
          groupings_of(stages[s], divides ? 0.5 : 1, divides ? 0 : longest_update(stages[s])));
      if (groupings_.back().empty()) return;
    }
    try_buckets();
  }

  /// Returns the stages with what the choice at hand makes passes and updates longer; nothing if
  /// one of them then takes too long.
  std::vector<Stage> longer_stages() {
    std::vector<Stage> stages = stages_;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      for (Replica& r : stages[s].replicas) {
        if (kept_[s].state_in_host) {
          const auto tensors = static_cast<std::int64_t>(stages[s].each.size());
          r.update = problem_.costs.update_seconds(r.kind, stages[s].elements, tensors, true);
        }
        add_what_is_computed_again(stages[s].ops, kept_[s].recompute, r);
        // Parts of divided updates may be short.
        const double update = kept_[s].state == StateLevel::kWhole ? r.update : 0;
        if (r.done + std::max(report(), update) >= below()) return {};
      }
    }
    return stages;
  }

  /// All but the last micro-batch's share of it comes before any gradient is whole.
  void add_what_is_computed_again(const std::vector<OpId>& ops, const Recomputation& recompute,
                                  Replica& r) {
    if (!recompute.again || !recompute) return;
    const std::vector<OpSeconds>& times = times_of(r.kind, r.end - r.begin);
    double again = 0;
    const std::size_t end = segments_.ends(ops, recompute).back();
    for (std::size_t i = 0; i < end; ++i) again += times[at(ops[i])].forward;
    const double done = busy(r) + static_cast<double>(now_.micro_batches) * again;
    if (done - again < r.done) return;  // it waits for others: they bound it more
    r.done = done;
    r.backward += again;
  }

  Segments segments_;
  std::vector<std::vector<Choice>> choices_;  // by stage
  std::vector<Kept> kept_;                    // by stage, at hand
  std::vector<std::vector<Kept>> fitting_;    // of the form at hand
};

}  // namespace

Optimum best_in_whole_space(const Problem& problem, double below, std::int64_t most_evaluations) {
  return WholeSpace(problem, below, most_evaluations).run();
}

}  // namespace agpcs::bench
