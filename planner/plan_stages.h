// SPDX-License-Identifier: Apache-2.0
// The stages that decide, each a function from value to value: seed, refine, group, flows, lower;
// and what is measured beside them. The pipeline (planner/pipeline.h) runs them in this order.
#pragma once

#include "planner/choose_flows.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"
#include "planner/refine/refiner.h"
#include "planner/seed/layout/layout.h"
#include "planner/seed/pool.h"

#include <agpcs/plan.h>
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

struct LowerBound;

struct PlanOptions {
  std::uint64_t seed = 0;
  std::vector<std::string> seeders;  ///< empty: all, in the table's order
  /// Known strategies, such as that of a running plan: the candidates of seeder "running". The
  /// search has at least one of them among its starts. Needs: each verifies.
  std::vector<Strategy> starts;
  std::optional<Layout> layout;      ///< if given: exactly this one, no seeders, no refiner
  const Refiner* refiner = nullptr;  ///< null: the best seed is the plan
  std::int64_t budget = 0;           ///< evaluations of the one search; 0: `default_budget` each
  AllReduceChoice all_reduce = AllReduceChoice::kAuto;  ///< `choose_flows`, after the search
  bool interleave = false;  ///< devices may have several stages each (`search_interleaved`)
  bool bound = true;        ///< bounds the step of any plan, beside the plan
  int threads = 1;          ///< do not change any byte of the result
  const std::atomic<bool>* interrupted = nullptr;  ///< true: ends with the best so far, once any is
  /// Receives what is done next, for progress: ("metis", 2, 6) is the second of six.
  std::function<void(std::string_view what, int number, int of)> progress;
  /// Receives the evaluations made, the number of all, and the shortest step so far, in seconds.
  std::function<void(std::int64_t made, std::int64_t of, double seconds)> search_progress;
  /// Receives a plan that fits, as it is found before a search: its step in seconds, and its
  /// seeder. It need not be better than the last one. No two of these functions run at a time.
  std::function<void(double seconds, std::string_view seeder)> found;
  std::function<void(const LowerBound& bound)> bounded;  ///< receives the bound, once it is known
};

/// The result of a seeder or baseline.
struct Attempt {
  std::string name;
  int candidates = 0;
  int feasible = 0;
  std::optional<double> step_seconds;  ///< step of its best strategy that fits
  std::string why_not;                 ///< if none fits: which device lacks how many bytes
};

/// The result of all seeders.
struct Seeds {
  SeedPool pool;                  ///< their candidates, at least one
  SeedPool known;                 ///< those of PlanOptions::starts, which `pool` has, too
  std::vector<Attempt> attempts;  ///< by seeder, in the order in which they ran
  bool interrupted = false;       ///< an interrupt left seeders out
};

/// How a search went, beside what `MadeBy` says of it.
struct Refinement {
  std::int64_t budget = 0;              ///< evaluations of all searches of the whole
  std::optional<double> start_seconds;  ///< step of the best seed, if that fits
  std::vector<EpisodeLog> log;
};

/// What is decided, and who decided it.
struct Decision {
  Strategy strategy;
  MadeBy made_by;  ///< for the plan's header
  Refinement refinement;
  bool as_it_is = false;  ///< `Seeder::as_it_is`, where no refiner changed the strategy
};

/// Finds a plan that fits at once (`first_plan`), so that there is one while the seeders work.
/// Needs: `evaluator` is the problem's, here and below.  Gives: nothing if none of the few that it
/// tries fits, or if the options have seeders or a layout of their own.
/// Cost: that of `first_plan`, and an evaluation.
std::optional<Seed> first_seed(const Problem& problem, Evaluator& evaluator,
                               const PlanOptions& options);

/// Asks each chosen seeder for candidates and scores them with one evaluator, as soon as it has
/// those of the seeders before.
/// Gives: candidates in the order of the seeders, each with its score and its seeder; those that
/// do not fit are among them. After an interrupt, seeders are left out, and the ones that run end
/// early, once there is a plan that fits; `first` is a candidate then if no other fits.
/// Errors: kUsage for an unknown seeder; kInfeasible where no seeder has any candidate.
/// Cost: that of the seeders, and an evaluation a candidate.
Result<Seeds> seed(const Problem& problem, Evaluator& evaluator, const PlanOptions& options,
                   const std::optional<Seed>& first);

/// Begins with the best seed, and lets the refiner search from the best of them: several times
/// where the cluster is small, the budget is the default, and the first search gains much; then
/// from plans of all hosts but one, too. Gives: a strategy whose step is never longer than the best
/// seed's; the best seed itself where the options have no refiner, or a layout. The strategy has
/// buckets if the search changed them. Cost: `budget` evaluations a search, and those of parts
/// (part_plans.h).
Result<Decision> refine(const Problem& problem, Evaluator& evaluator, const Seeds& seeds,
                        const PlanOptions& options);

/// Groups the gradients by `group_gradients` with the problem's `bucket_bytes`, unless the strategy
/// has buckets: then it stays as it is.
/// Gives: each trained parameter is in exactly one bucket.  Cost: that of `group_gradients`.
Result<Decision> group(Evaluator& evaluator, Decision decision);

/// Chooses how each bucket is reduced (`choose_flows`). With kAuto and kFlow it does the same for
/// the best seeds, and takes one of them if its step is shorter then: searches do not see flows,
/// and leave out devices that only a flow reaches well. Gives: a strategy whose step is never
/// longer with kAuto.  Cost: that of `choose_flows`, up to eight times.
Result<Decision> flows(const Problem& problem, Evaluator& evaluator, const Seeds& seeds,
                       const PlanOptions& options, Decision decision);

/// Writes the instruction programs, and simulates them for the plan's `expect` section.
/// Needs: the strategy has buckets.  Gives: a plan that `verify_plan_against` accepts.
/// Errors: kInfeasible where memory does not suffice, with the device that lacks most bytes.
/// Cost: O(instructions of all ranks, log).
Result<Evaluated> lower(const Problem& problem, Decision decision);

/// Measures what users have without a planner: "data_parallel" (`plain_data_parallelism`) and
/// "degree", the degree seeder's plan with buckets of kHorovodFusionBytes. They are never chosen:
/// ask for seeder `degree` or `equal` to have their plans.
Result<std::vector<Attempt>> measure_baselines(const Problem& problem, Evaluator& evaluator,
                                               const PlanOptions& options);

/// Returns the strategies from which a search begins: at most `most` candidates of all seeders, the
/// fastest that fit first, no two with the same devices in the same stages. If none fits, returns
/// those that lack least. Errors: those of a seeder.
Result<std::vector<Strategy>> seed_strategies(const Problem& problem, std::uint64_t seed,
                                              std::size_t most);

/// Returns a number of evaluations for which a search from `start` takes seconds: it is smaller for
/// larger graphs and clusters, and up to four times as large where few operators meet more than 256
/// devices.
std::int64_t default_budget(const Problem& problem, const Strategy& start);

/// The steps that `PlanOptions::progress` receives: each seeder, then each baseline, then the
/// refiner if there is one.
struct PlanSteps {
  explicit PlanSteps(const PlanOptions& options);
  bool refines = false;
  int seeders = 0;
  int all = 0;
};

/// The number of seeds from which a search begins, and that `flows` looks at, too.
inline constexpr std::size_t kStartsOfSearch = 6;

}  // namespace agpcs
