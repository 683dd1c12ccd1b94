// SPDX-License-Identifier: Apache-2.0
// SeedPool: the candidates of all seeders with their scores. It chooses where a search begins.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

#include <cstddef>
#include <string>
#include <vector>

namespace agpcs {

struct Seed {
  Strategy strategy;
  Score score;
  std::string seeder;
  bool as_it_is = false;  ///< `Seeder::as_it_is`
};

/// Returns whether `a` is better: it fits and `b` does not, or its step is shorter, or neither fits
/// and it lacks less.
bool is_better(const Score& a, const Score& b);
/// Returns whether `a` is better by more than rounding: its step by a part in a million, if both
/// fit.
bool is_clearly_better(const Score& a, const Score& b);
/// Returns how long the step of a strategy that is better than one of `score` can be.
double most_seconds(const Score& score);

class SeedPool {
 public:
  void add(Seed seed) { seeds_.push_back(std::move(seed)); }
  bool empty() const { return seeds_.empty(); }
  const std::vector<Seed>& all() const { return seeds_; }
  /// Returns the seeds without teams and interleaved stages: searches of moves (planner/refine)
  /// know neither.
  SeedPool known_to_moves() const;
  /// Returns the best seed; a tie goes to the first. Needs: not empty.
  const Seed& best() const;
  /// Returns at most `most` seeds, the best first, no two with the same devices in the same stages.
  /// If any seed fits, all that it returns fit.
  std::vector<Seed> bests(std::size_t most) const;
  /// Returns the strategies of `bests`.
  std::vector<Strategy> starts(std::size_t most) const;

 private:
  std::vector<Seed> seeds_;
};

}  // namespace agpcs
