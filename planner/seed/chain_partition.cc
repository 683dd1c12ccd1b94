// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/chain_partition.h"

#include "ir/base/at.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace agpcs {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Distinct pairs (state, place), numbered.
class Nodes {
 public:
  int add(int state, int place) {
    return known_.try_emplace({state, place}, static_cast<int>(known_.size())).first->second;
  }
  std::size_t size() const { return known_.size(); }
  const std::map<std::pair<int, int>, int>& all() const { return known_; }

 private:
  std::map<std::pair<int, int>, int> known_;
};

struct Best {
  double seconds = kNever;
  int group = -1, end_piece = 0, next = -1;  // next: the entry of the next stage
};

class ChainPartitioner {
 public:
  explicit ChainPartitioner(const ChainProblem& problem)
      : problem_(problem), width_(at(problem.pieces) + 1), best_step_(problem.best_step) {
    for (const ChainGroup& group : problem.groups) {
      entry_of_.push_back(entries_.add(group.from, group.entry));
      exit_of_.push_back(exits_.add(group.to, group.exit));
    }
  }

  std::vector<ChainPlan> run() {
    const int most = std::min(problem_.most_stages, problem_.pieces);
    std::vector<ChainPlan> plans;
    for (int stages = 1; stages <= most; ++stages) {
      find_successors(stages - 1);
      layers_.emplace_back(entries_.size() * width_);
      for (int group = 0; group < static_cast<int>(problem_.groups.size()); ++group) {
        extend(stages, group);
      }
      const int first = best_entry();
      if (first < 0) continue;
      plans.push_back(plan_from(first));
      best_step_ = std::min(best_step_, (problem_.fill + stages) * plans.back().seconds);
    }
    return plans;
  }

 private:
  struct Successor {
    double seconds = kNever;
    int entry = -1;
  };

  Best& best(int stages, int entry, int piece) {
    return layers_[at(stages) - 1][at(entry) * width_ + at(piece)];
  }
  /// Returns the most seconds that a part of a plan of at least `stages` stages may take.
  double most_seconds(int stages) const {
    return best_step_ == kNever ? kNever : best_step_ * problem_.within / (problem_.fill + stages);
  }

  /// Finds, for each end of a stage and piece after it, the best of what may follow in `stages`
  /// stages.
  void find_successors(int stages) {
    successors_.assign(exits_.size() * width_, {});
    if (stages > 0) find_live(stages);
    for (const auto& [exit, number] : exits_.all()) {
      Successor* const after_it = &successors_[at(number) * width_];
      if (stages == 0) {
        after_it[problem_.pieces].seconds = 0;
        continue;
      }
      auto entry = entries_.all().lower_bound({exit.first, std::numeric_limits<int>::min()});
      for (; entry != entries_.all().end() && entry->first.first == exit.first; ++entry) {
        const auto [first, end] = live_[at(entry->second)];
        for (int piece = first; piece < end; ++piece) {
          const double after = best(stages, entry->second, piece).seconds;
          Successor& successor = after_it[piece];
          if (after >= successor.seconds) continue;
          const double cut = problem_.cut_seconds(piece, exit.second, entry->first.second);
          const double seconds = std::max(after, cut);
          if (seconds < successor.seconds) successor = {seconds, entry->second};
        }
      }
    }
  }

  /// Finds, for each entry, the range of pieces from which `stages` stages are not too slow to
  /// follow a stage.
  void find_live(int stages) {
    const double most = most_seconds(stages + 1);
    const auto is_live = [&](int entry, int piece) {
      const double seconds = best(stages, entry, piece).seconds;
      return seconds <= most && seconds != kNever;
    };
    live_.assign(entries_.size(), {});
    for (int entry = 0; entry < static_cast<int>(entries_.size()); ++entry) {
      int first = 1, end = problem_.pieces;
      while (first < end && !is_live(entry, first)) ++first;
      while (first < end && !is_live(entry, end - 1)) --end;
      live_[at(entry)] = {first, end};
    }
  }

  void extend(int stages, int group) {
    const int from = problem_.groups[at(group)].from;
    const double most = most_seconds(stages);
    const int last = last_begin(from, most_seconds(stages + 1));
    for (int end = problem_.pieces; end > 0; --end) {
      const Successor& successor = successors_[at(exit_of_[at(group)]) * width_ + at(end)];
      if (successor.seconds == kNever || successor.seconds > most) continue;
      for (int begin = std::min(end - 1, last); begin >= 0; --begin) {
        Best& known = best(stages, entry_of_[at(group)], begin);
        if (successor.seconds >= known.seconds) continue;  // whatever the stage takes
        const double own =
            problem_.stage_seconds(begin, end, group, stages - 1, std::min(most, known.seconds));
        if (own > most || own == kNever) break;  // more pieces take longer
        const double seconds = std::max(own, successor.seconds);
        if (seconds < known.seconds) known = {seconds, group, end, successor.entry};
      }
    }
  }

  /// Returns the last piece before which a state's devices can have done everything within `most`.
  int last_begin(int state, double most) const {
    if (!problem_.least_before || most == kNever) return problem_.pieces - 1;
    int low = 0, high = problem_.pieces - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      const bool enough = problem_.least_before(middle, state) <= most;
      (enough ? low : high) = enough ? middle : middle - 1;
    }
    return low;
  }

  /// Returns the entry of the best plan with as many stages as there are layers, or -1.
  int best_entry() {
    const int stages = static_cast<int>(layers_.size());
    int first = -1;
    double least = kNever;
    for (const auto& [entry, number] : entries_.all()) {
      const double seconds = best(stages, number, 0).seconds;
      if (seconds >= least) continue;
      least = seconds;
      first = number;
    }
    return first;
  }

  ChainPlan plan_from(int entry) {
    ChainPlan plan;
    int piece = 0;
    plan.seconds = best(static_cast<int>(layers_.size()), entry, 0).seconds;
    for (int stages = static_cast<int>(layers_.size()); stages > 0; --stages) {
      const Best& first = best(stages, entry, piece);
      plan.stages.push_back({piece, first.end_piece, first.group});
      piece = first.end_piece;
      entry = first.next;
    }
    return plan;
  }

  const ChainProblem& problem_;
  std::size_t width_;
  Nodes entries_, exits_;
  std::vector<int> entry_of_, exit_of_;    // by group
  std::vector<std::vector<Best>> layers_;  // by number of stages less one: by entry, then piece
  std::vector<Successor> successors_;      // by exit, then piece
  std::vector<std::pair<int, int>> live_;  // by entry: first piece and end
  double best_step_;
};

}  // namespace

std::vector<ChainPlan> partition_chain(const ChainProblem& problem) {
  return ChainPartitioner(problem).run();
}

}  // namespace agpcs
