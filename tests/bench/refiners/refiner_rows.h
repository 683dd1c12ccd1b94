// SPDX-License-Identifier: Apache-2.0
// The rows of refiner_bench: refiners of the table with other policies, with and without walks in
// imagination.
#pragma once

#include "planner/refine/refiner.h"
#include "planner/refine/search_point.h"

#include <cstdint>
#include <memory>
#include <string>

namespace agpcs::bench {

/// Spelled `refiner[:policy][+walks|-walks]`: "anneal+walks", "dqn:zero", "dqn:my.policy-walks".
/// `dqn` walks unless it says -walks; greedy and anneal walk where they say +walks.
struct RefinerRow {
  std::string name;     ///< as spelled
  std::string refiner;  ///< of the table of refiners
  /// Of `dqn`: shipped; formula, what training begins from; zero, which ranks no move above another
  /// one; random, random:SEED; or a file.
  std::string policy;
  bool walks = false;
};

/// `policy`: of a `dqn` that names none. Without `imagination` nobody walks. Ends the program where
/// `text` is no row.
RefinerRow refiner_row(const std::string& text, const std::string& policy, bool imagination);

/// `seed`: of random policies that name none.
std::unique_ptr<Refiner> make_refiner_of(const RefinerRow& row, std::uint64_t seed);

}  // namespace agpcs::bench
