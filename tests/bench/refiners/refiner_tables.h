// SPDX-License-Identifier: Apache-2.0
// The tables of refiner_bench: what rows found, over problems and seeds.
#pragma once

#include "tests/bench/refiners/refiner_rows.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::bench {

/// What a row found on a problem with a budget and a seed.
struct Found {
  double cost = 0;  ///< step relative to the best seed's
  double gap = 0;   ///< step over that of the best known plan, less 1; 0 where none is kept
  double evaluations = 0;
  double seconds = 0;  ///< of the processor
};

/// A row and a budget.
using Key = std::pair<std::size_t, std::int64_t>;

struct Findings {
  std::string problem;
  std::map<Key, std::vector<Found>> found;  ///< one for each seed

  double mean(const Key& key, double Found::*figure) const;
};

/// What was compared.
struct Compared {
  std::vector<RefinerRow> rows;
  std::vector<std::int64_t> budgets;
  std::vector<std::uint64_t> seeds;
  bool best_is_known = false;
};

std::string title_of(const Compared& compared, const Key& key);

// A line for each problem.
void print_head(const Compared& compared);
void print_problem(const Compared& compared, const Findings& findings);

/// A line for each row and budget. Rows are compared with the first one by problem and seed.
/// Intervals are Student's t, 95%, over problems, of means over seeds.
void print_rows(const std::vector<Findings>& all, const Compared& compared);
/// The steps of the first row over those of the others.
void print_ratios(const std::vector<Findings>& all, const Compared& compared);

}  // namespace agpcs::bench
