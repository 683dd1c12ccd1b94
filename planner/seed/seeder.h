// SPDX-License-Identifier: Apache-2.0
// Seeders: first strategies for a problem. One table feeds the factory, --help and "did you mean".
#pragma once

#include "ir/base/rng.h"
#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

#include <agpcs/status.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

class Seeder {
 public:
  virtual ~Seeder() = default;
  virtual std::string_view name() const = 0;  ///< the one spelling: flag, plan header, log
  /// Returns candidate strategies, each valid under `verify_strategy`. The caller evaluates them
  /// and keeps the best that fits. They have no buckets unless the seeder is `as_it_is`. Same
  /// problem and `rng`, same candidates. There are none if the seeder's kind of strategy does not
  /// exist (a pipeline over one device). If nothing fits memory, returns the candidate that lacks
  /// least.
  virtual Result<std::vector<Strategy>> seed(const Problem& problem, Rng rng) const = 0;
  /// Returns whether its strategies have buckets and algorithms of their own, which are part of
  /// what they are: only a refiner, or a user who asks for an algorithm, changes them.
  virtual bool as_it_is() const { return false; }

  /// Lets the seeder ask from time to time whether its candidates are still wanted. Once `unwanted`
  /// returns true, `seed` may end early, and what it returns is of no use.
  void ask(std::function<bool()> unwanted) { unwanted_ = std::move(unwanted); }

 protected:
  bool unwanted() const { return unwanted_ && unwanted_(); }

 private:
  std::function<bool()> unwanted_;
};

struct SeederEntry {
  std::string_view name;
  std::string_view help;
  std::unique_ptr<Seeder> (*make)();
};
/// Returns the seeders in the order in which they run; a tie in step time goes to the first.
std::span<const SeederEntry> seeders();
/// Returns `seeders()`, then those that run only if they are asked for by name: the ones that a
/// plan is compared with.
std::span<const SeederEntry> named_seeders();

/// Makes the seeder of that name in `named_seeders()`. Errors: no such name (did you mean).
Result<std::unique_ptr<Seeder>> make_seeder(std::string_view name);

std::unique_ptr<Seeder> make_data_parallel_seeder();
std::unique_ptr<Seeder> make_metis_seeder();
std::unique_ptr<Seeder> make_degree_seeder();
std::unique_ptr<Seeder> make_linear_seeder();
std::unique_ptr<Seeder> make_even_seeder();
std::unique_ptr<Seeder> make_teams_seeder();
std::unique_ptr<Seeder> make_equal_seeder();

/// Returns the pipelines of two stages, equal or not, and of few micro-batches that are roughly
/// fastest; there may be none. Seeder `linear` looks for equal ones. Needs: `evaluator` is the
/// problem's.
Result<std::vector<Strategy>> pipelines_of_two_stages(const Problem& problem, Evaluator& evaluator);

/// Returns plain data parallelism, the baseline and the plan of seeder `equal`: all devices, equal
/// shares, the fewest micro-batches whose memory suffices (the most if none does), and buckets of
/// kUsualBucketBytes unless the problem says how large. Each bucket has the algorithm that is
/// fastest alone.
Result<Strategy> plain_data_parallelism(const Problem& problem);
/// Returns data parallelism over all devices with shares by speed and the fewest micro-batches
/// whose memory suffices (the most if none does). Needs: `evaluator` is the problem's.
Strategy data_parallelism_by_speed(const Problem& problem, Evaluator& evaluator);

}  // namespace agpcs
