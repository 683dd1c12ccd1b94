// SPDX-License-Identifier: Apache-2.0
// plan_problem: runs seeders, refines the best of their strategies, and compares the plan with
// baselines.
#pragma once

#include "planner/choose_flows.h"
#include "planner/dqn.h"
#include "planner/layout.h"
#include "planner/lower_bound.h"
#include "planner/problem.h"
#include "planner/refiner.h"

#include <agpcs/status.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// What a seeder or baseline came to.
struct Attempt {
  std::string name;
  int candidates = 0;
  int feasible = 0;
  std::optional<double> step_seconds;  ///< of its best that fits
  std::string why_not;                 ///< where none fits: which device lacks how many bytes
};

/// What the refiner came to.
struct Refinement {
  std::string name;
  std::int64_t evaluations = 0, budget = 0;
  bool interrupted = false;
  std::optional<double> start_seconds;  ///< step of the best seed, if that fits
  std::vector<EpisodeLog> log;
};

struct PlanOptions {
  std::uint64_t seed = 0;
  std::vector<std::string> seeders;  ///< empty: all, in the table's order
  /// Known strategies, such as that of a plan that runs: candidates of seeder "running", of which
  /// the search has at least one among its starts. Each verifies.
  std::vector<Strategy> starts;
  std::optional<Layout> layout;      ///< given: exactly this one, no seeder and no refiner is asked
  const Refiner* refiner = nullptr;  ///< null: the best seed is the plan
  std::int64_t budget = 0;           ///< evaluations of the refiner; 0: `default_budget`
  AllReduceChoice all_reduce = AllReduceChoice::kAuto;  ///< `choose_flows`, after the search
  int threads = 1;                                      ///< change no byte of the result
  const std::atomic<bool>* interrupted = nullptr;       ///< true: ends with the best so far
  /// Told what is done next ("metis", 2, 6: the second of six), for progress.
  std::function<void(std::string_view what, int number, int of)> progress;
  /// Told evaluations made, of how many, and the shortest step seen, in seconds.
  std::function<void(std::int64_t made, std::int64_t of, double seconds)> search_progress;
};

struct Planned {
  Evaluated best;    ///< its plan has its `expect` section, and verifies against graph and cluster
  LowerBound bound;  ///< no strategy takes less
  std::vector<Attempt> seeders;    ///< in the order run
  std::vector<Attempt> baselines;  ///< "data_parallel" (`plain_data_parallelism`), "degree"
  Refinement refinement;
};

/// The fastest by simulated step time of all candidates that fit, then refined; a tie goes to the
/// first. Baselines are measured, never chosen: ask for seeder `degree` to have its plan.
/// Errors: kInfeasible where nothing fits, with the device that lacks least in the candidate that
/// lacks least; kUsage for an unknown seeder.
Result<Planned> plan_problem(const Problem& problem, const PlanOptions& options);

/// The strategies that a search begins from: at most `most` candidates of all seeders, the fastest
/// that fit first, no two with the same devices in the same stages; where none fits, those that
/// lack least. Errors: a seeder's.
Result<std::vector<Strategy>> seed_strategies(const Problem& problem, std::uint64_t seed,
                                              std::size_t most);

/// Evaluations that a search from `start` takes seconds for: fewer for larger graphs and clusters.
std::int64_t default_budget(const Problem& problem, const Strategy& start);

}  // namespace agpcs
