// SPDX-License-Identifier: Apache-2.0
// A small space to search: jobs on machines, the cost is when the last machine is done, and a
// machine holds no more than so many jobs. Its optimum can be enumerated.
#pragma once

#include "planner/refine/search_point.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {

struct Jobs {
  std::vector<int> lengths;
  int machines = 2;
  int most = 1000;  ///< jobs of a machine
};

class ToySearch : public SearchPoint {
 public:
  using Solution = std::vector<int>;  // machine of each job
  enum Kind { kMove, kSwap, kRotate };

  /// All jobs on machine 0 are the only start where `starts` is empty.
  explicit ToySearch(Jobs jobs, std::vector<Solution> starts = {})
      : jobs_(std::move(jobs)), starts_(std::move(starts)) {
    if (starts_.empty()) starts_.emplace_back(jobs_.lengths.size(), 0);
    here_ = kept_ = starts_.front();
    unit_ = 1;
    unit_ = broken(here_) > 0 ? 1.0 : cost_of(here_);
  }

  const Solution& solution() const { return here_; }
  std::int64_t evaluations() const { return evaluations_; }
  /// By trying all.
  double optimum() const {
    double best = 1e300;
    Solution solution(here_.size(), 0);
    for (;;) {
      best = std::min(best, cost_of(solution));
      std::size_t at = 0;
      while (at < solution.size() && ++solution[at] == jobs_.machines) solution[at++] = 0;
      if (at == solution.size()) return best;
    }
  }

  Outcome outcome() const override { return {cost_of(here_), 0}; }

  /// One of each kind in turn, while there are.
  std::vector<Move> moves(std::size_t most, Rng& rng) override {
    std::vector<std::vector<Change>> kinds = all_changes();
    for (std::vector<Change>& kind : kinds) {
      for (std::size_t i = 1; i < kind.size(); ++i) std::swap(kind[i], kind[rng.below(i + 1)]);
    }
    std::vector<Change> result;
    for (std::size_t drawn = 0, before = 1; drawn < most && result.size() != before; ++drawn) {
      before = result.size();
      for (const std::vector<Change>& kind : kinds) {
        if (drawn < kind.size()) result.push_back(kind[drawn]);
      }
    }
    for (std::size_t i = 0; i < std::min(most, result.size()); ++i) {
      std::swap(result[i], result[i + rng.below(std::min(result.size() - i, kinds.size()))]);
    }
    result.resize(std::min(most, result.size()));
    listed_ = std::move(result);
    evaluated_.clear();
    std::vector<Move> moves;
    for (const Change& change : listed_) {
      moves.push_back({change.kind, static_cast<int>(moves.size())});
    }
    return moves;
  }

  /// 0: always 1; 1: relative change of the larger load of two machines that a move touches; then
  /// one for each kind.
  void describe(std::span<const Move> moves, std::span<Features> features) override {
    for (std::size_t i = 0; i < moves.size(); ++i) {
      const Solution there = after(moves[i]);
      double before = 0, later = 0;
      const int job = listed(moves[i]).a;
      for (const int touched : {machine(job), there[static_cast<std::size_t>(job)]}) {
        before = std::max(before, load(here_, touched));
        later = std::max(later, load(there, touched));
      }
      features[i] = {};
      features[i][0] = 1;
      features[i][1] = static_cast<float>((later - before) / std::max(before, 1.0));
      features[i][static_cast<std::size_t>(2 + moves[i].kind)] = 1;
    }
  }

  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override {
    for (std::size_t i = 0; i < moves.size(); ++i) outcomes[i] = {cost_of(after(moves[i])), 0};
    evaluated_.assign(moves.begin(), moves.end());
    evaluations_ += static_cast<std::int64_t>(moves.size());
  }

  void take(const Move& move) override {
    if (std::find(evaluated_.begin(), evaluated_.end(), move) == evaluated_.end()) ++evaluations_;
    stand(after(move));
  }
  void keep() override { kept_ = here_; }
  void go_back() override { stand(kept_); }
  int starts() const override { return static_cast<int>(starts_.size()); }
  void go_to_start(int start) override { stand(starts_[static_cast<std::size_t>(start)]); }

 protected:
  /// An evaluation.
  void go_to(const Solution& solution) {
    stand(solution);
    ++evaluations_;
  }

 private:
  /// Job a to machine b; jobs a and b change places; jobs a, b and c turn.
  struct Change {
    Kind kind;
    int a, b, c = 0;
  };

  /// By kind. Those of kRotate turn three neighbours.
  std::vector<std::vector<Change>> all_changes() const {
    std::vector<std::vector<Change>> all(3);
    const int count = static_cast<int>(here_.size());
    for (int a = 0; a < count; ++a) {
      for (int b = 0; b < jobs_.machines; ++b) {
        if (b != machine(a)) all[kMove].push_back({kMove, a, b});
      }
      for (int b = a + 1; b < count; ++b) {
        if (machine(a) != machine(b)) all[kSwap].push_back({kSwap, a, b});
      }
      if (a + 2 >= count) continue;
      if (machine(a) == machine(a + 1) && machine(a) == machine(a + 2)) continue;
      all[kRotate].push_back({kRotate, a, a + 1, a + 2});
    }
    return all;
  }

  int machine(int job) const { return here_[static_cast<std::size_t>(job)]; }

  void stand(Solution solution) {
    here_ = std::move(solution);
    evaluated_.clear();
  }

  const Change& listed(const Move& move) const {
    return listed_.at(static_cast<std::size_t>(move.index));
  }

  Solution after(const Move& move) const {
    const Change& change = listed(move);
    Solution there = here_;
    int& a = there[static_cast<std::size_t>(change.a)];
    if (change.kind == kMove) {
      a = change.b;
    } else {
      int& b = there[static_cast<std::size_t>(change.b)];
      std::swap(a, b);
      if (change.kind == kRotate) std::swap(b, there[static_cast<std::size_t>(change.c)]);
    }
    return there;
  }

  double load(const Solution& solution, int machine) const {
    double sum = 0;
    for (std::size_t job = 0; job < solution.size(); ++job) {
      if (solution[job] == machine) sum += jobs_.lengths[job];
    }
    return sum;
  }

  /// Jobs too many.
  double broken(const Solution& solution) const {
    double sum = 0;
    for (int machine = 0; machine < jobs_.machines; ++machine) {
      const auto count = std::count(solution.begin(), solution.end(), machine);
      sum += static_cast<double>(std::max<std::int64_t>(0, count - jobs_.most));
    }
    return sum;
  }

  double cost_of(const Solution& solution) const {
    if (const double excess = broken(solution); excess > 0) return kBroken + excess;
    double longest = 0;
    for (int machine = 0; machine < jobs_.machines; ++machine) {
      longest = std::max(longest, load(solution, machine));
    }
    return longest / unit_;
  }

  Jobs jobs_;
  std::vector<Solution> starts_;
  Solution here_, kept_;
  std::vector<Change> listed_;
  std::vector<Move> evaluated_;
  std::int64_t evaluations_ = 0;
  double unit_ = 1;
};

}  // namespace agpcs
