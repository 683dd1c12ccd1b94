// SPDX-License-Identifier: Apache-2.0
// Refiners: improve a solution within a number of evaluations. One table feeds the factory, --help
// and "did you mean".
#pragma once

#include "ir/base/rng.h"
#include "planner/refine/search_point.h"

#include <agpcs/status.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// One line of a search log.
struct EpisodeLog {
  std::int64_t episode = 0;
  double epsilon = 0;
  double loss = 0;       ///< mean over the episode's gradient steps; 0 if there were none
  double reward = 0;     ///< Formula 2 at the end of the episode
  double best_cost = 0;  ///< the least of the search so far, relative to start 0
};

/// The number of evaluations that a search may still make. It never looks at a clock, so that a
/// search ends with the same result on every machine.
class SearchBudget {
 public:
  /// Receives the number of evaluations made, the number of all, and the least cost so far.
  using Progress = std::function<void(std::int64_t made, std::int64_t of, double best)>;

  explicit SearchBudget(std::int64_t evaluations, const std::atomic<bool>* interrupted = nullptr,
                        Progress progress = nullptr)
      : of_(evaluations), interrupted_(interrupted), progress_(std::move(progress)) {}

  std::int64_t of() const { return of_; }
  std::int64_t made() const { return made_; }
  /// Returns 0 if the budget is used up or the search was interrupted.
  std::int64_t left() const { return interrupted() ? 0 : of_ - made_; }
  bool interrupted() const { return interrupted_ != nullptr && interrupted_->load(); }
  /// Counts `evaluations`, after which the best solution costs `best`. Needs: no more than left().
  void spend(std::int64_t evaluations, double best) {
    made_ += evaluations;
    if (progress_) progress_(made_, of_, best);
  }
  void log(const EpisodeLog& episode) { log_.push_back(episode); }
  std::vector<EpisodeLog> take_log() { return std::move(log_); }

 private:
  std::int64_t of_, made_ = 0;
  const std::atomic<bool>* interrupted_;
  Progress progress_;
  std::vector<EpisodeLog> log_;
};

class Refiner {
 public:
  virtual ~Refiner() = default;
  virtual std::string_view name() const = 0;  ///< the one spelling: flag, plan header, log
  /// Leaves `point` at the solution of least cost at which it stood, never worse than start 0.
  /// Spends `budget` for what it evaluates. Same point, budget and `rng`, same solution.
  virtual void refine(SearchPoint& point, SearchBudget& budget, Rng rng) const = 0;
};

struct RefinerEntry {
  std::string_view name;
  std::string_view help;
  std::unique_ptr<Refiner> (*make)();
};
std::span<const RefinerEntry> refiners();

/// Makes the refiner of that name. Errors: no such name (did you mean).
Result<std::unique_ptr<Refiner>> make_refiner(std::string_view name);

std::unique_ptr<Refiner> make_no_refiner();
std::unique_ptr<Refiner> make_random_refiner();
std::unique_ptr<Refiner> make_greedy_refiner();
std::unique_ptr<Refiner> make_anneal_refiner();

}  // namespace agpcs
