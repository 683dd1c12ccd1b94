// SPDX-License-Identifier: Apache-2.0
// SeedPool: the candidates of all seeders with their scores, and which of them a search begins
// from.
#pragma once

#include "planner/evaluator.h"
#include "planner/problem.h"

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

/// Whether `a` is the better one: it fits and the other does not, or its step is shorter, or both
/// do not fit and it lacks less.
bool is_better(const Score& a, const Score& b);

class SeedPool {
 public:
  void add(Seed seed) { seeds_.push_back(std::move(seed)); }
  bool empty() const { return seeds_.empty(); }
  const std::vector<Seed>& all() const { return seeds_; }
  /// The best; a tie goes to the first. Needs: not empty.
  const Seed& best() const;
  /// As `starts`, whole.
  std::vector<Seed> bests(std::size_t most) const;
  /// At most `most`, the best first, no two with the same devices in the same stages; only such
  /// that fit, if any does.
  std::vector<Strategy> starts(std::size_t most) const;

 private:
  std::vector<Seed> seeds_;
};

}  // namespace agpcs
