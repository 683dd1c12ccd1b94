// SPDX-License-Identifier: Apache-2.0
// The best known plans of the problems with room (best_known.txt): kept as strategies, so that what
// they take is simulated anew with every change of the cost model.
#pragma once

#include "ir/strategy/strategy.h"
#include "planner/problem/problem.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs::bench {

struct BestKnown {
  int candidate = 0;        ///< index of `room_candidate`
  std::string digest;       ///< of `text_of` the problem
  double seed_seconds = 0;  ///< step of the best seed when the problem was selected
  double best_seconds = 0;  ///< step of `strategy`
  std::string found_by;     ///< refiner, evaluations and seed, in words
  Strategy strategy;        ///< without flows
};

/// The text: a few lines a problem.
std::string print_best_known(const std::vector<BestKnown>& all);
/// Errors: a line that says nothing, with its number.
Result<std::vector<BestKnown>> parse_best_known(std::string_view text, std::string_view file);

/// The path of the file that is kept.
std::string best_known_path();
/// Reads a file. Ends the program where it cannot be read.
std::vector<BestKnown> read_best_known(const std::string& path);

/// Simulates the step of a kept strategy. Errors: it does not verify, or lacks memory.
Result<double> seconds_of(const Problem& problem, const Strategy& strategy);

}  // namespace agpcs::bench
