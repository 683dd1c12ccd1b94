// SPDX-License-Identifier: Apache-2.0
// How often the planner finds the best strategy there is: plans generated problems with its
// defaults, then tries every strategy that might be faster.
//
//     optimality_bench [problems: 200] [first seed: 0] [refiner: dqn] [evaluations: the default]
//                      [whole]
//
// With `whole`, problems are short of memory, and strategies those of the whole space.
// Prints a line for each miss with both strategies, then a summary. Where the search over all ends
// at its most evaluations and has found nothing faster, a problem is neither optimal nor a miss.
// Exit code 1: of the others fewer than 95% are optimal, or a gap is above 2%.
#include "planner/plan_problem.h"
#include "tests/bench/planning/small_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace agpcs::bench {
namespace {

/// What differs by less is equal: sums of seconds in another order.
constexpr double kEqual = 1e-9;
/// Of the search over all strategies, for a problem.
constexpr std::int64_t kMostEvaluations = 5'000'000;

struct Tally {
  int problems = 0, optimal = 0, misses = 0, infeasible = 0;
  int open = 0;  // nothing faster was found, but not all was tried
  std::int64_t skeletons = 0, evaluations = 0;
  double worst = 0, worst_of_bound = 0, planning = 0, searching = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print_miss(std::uint64_t seed, double gap, const Problem& problem, const Evaluated& planned,
                const Optimum& optimum) {
  fmt::print("\nproblem {}: {:.3f}% slower than the best, {:.6g} against {:.6g} s\n", seed,
             100 * gap, planned.estimate.step_seconds, optimum.seconds);
  fmt::print("{} blocks, batch {}\n{}-- planned, by {} and {}\n{}-- best\n{}",
             problem.blocks.size(), problem.training.batch, print_cluster(problem.cluster),
             planned.plan.made_by.seeder, planned.plan.made_by.refiner,
             print_strategy(planned.strategy, problem.graph, problem.cluster),
             print_strategy(optimum.strategy, problem.graph, problem.cluster));
}

void try_problem(std::uint64_t seed, const PlanOptions& options, bool whole, Tally& tally) {
  const auto problem = whole ? tight_problem(seed) : small_problem(seed);
  ++tally.problems;
  auto start = std::chrono::steady_clock::now();
  const Result<Planned> planned = plan_problem(*problem, options);
  tally.planning += seconds_since(start);
  start = std::chrono::steady_clock::now();
  const double found =
      planned.ok() ? planned->best.estimate.step_seconds : std::numeric_limits<double>::infinity();
  const auto search = whole ? best_in_whole_space : best_below;
  const Optimum optimum = search(*problem, found * (1 - kEqual), kMostEvaluations);
  tally.searching += seconds_since(start);
  tally.skeletons += optimum.skeletons;
  tally.evaluations += optimum.evaluations;
  if (optimum.seconds < found) {
    ++tally.misses;
  } else if (optimum.complete) {
    ++tally.optimal;
  } else {
    ++tally.open;
    fmt::print("problem {}: not finished\n", seed);
  }
  if (!planned.ok()) {
    ++tally.infeasible;
    if (optimum.seconds < found) {
      tally.worst = std::numeric_limits<double>::infinity();
      fmt::print("\nproblem {}: said to be infeasible: {}\n-- best\n{}", seed,
                 planned.status().message(),
                 print_strategy(optimum.strategy, problem->graph, problem->cluster));
    }
    return;
  }
  const double least = std::min(found, optimum.seconds);
  const LowerBound& bound = *planned->bound;
  const double least_of_any = (whole ? bound.any_interleaved : bound.any).seconds;
  tally.worst_of_bound = std::max(tally.worst_of_bound, least / least_of_any - 1);
  if (optimum.seconds >= found) return;
  const double gap = found / optimum.seconds - 1;
  tally.worst = std::max(tally.worst, gap);
  print_miss(seed, gap, *problem, planned->best, optimum);
}

int run(std::uint64_t first, int count, const PlanOptions& options, bool whole) {
  Tally tally;
  for (int i = 0; i < count; ++i)
    try_problem(first + static_cast<std::uint64_t>(i), options, whole, tally);
  const int decided = std::max(1, tally.problems - tally.open);
  const double fraction = static_cast<double>(tally.optimal) / decided;
  fmt::print("\n{} problems, of which {} have no plan\n", tally.problems, tally.infeasible);
  fmt::print("optimal        {} ({:.1f}% of all, {:.1f}% of those that are decided)\n",
             tally.optimal, 100.0 * tally.optimal / tally.problems, 100 * fraction);
  fmt::print("a faster one   {}\n", tally.misses);
  fmt::print("worst gap      {:.3f}%\n", 100 * tally.worst);
  fmt::print("not finished   {}, none of them with a faster one\n", tally.open);
  fmt::print("bound          the best is at most {:.1f}% above it\n", 100 * tally.worst_of_bound);
  fmt::print("tried          {} skeletons, {} evaluations\n", tally.skeletons, tally.evaluations);
  fmt::print("time           {:.1f} s planning, {:.1f} s trying all\n", tally.planning,
             tally.searching);
  return fraction >= 0.95 && tally.worst <= 0.02 ? 0 : 1;
}

}  // namespace
}  // namespace agpcs::bench

int main(int argc, char** argv) {
  const auto argument = [&](int index, std::int64_t otherwise) {
    return argc > index ? std::atoll(argv[index]) : otherwise;
  };
  const auto refiner = agpcs::make_refiner(argc > 3 ? argv[3] : "dqn");
  if (!refiner.ok()) {
    fmt::print("{}\n", refiner.status().message());
    return 2;
  }
  agpcs::PlanOptions options;
  options.refiner = refiner->get();
  options.budget = argument(4, 0);
  const bool whole = argc > 5 && std::string_view(argv[5]) == "whole";
  options.interleave = whole;
  return agpcs::bench::run(static_cast<std::uint64_t>(argument(2, 0)),
                           static_cast<int>(argument(1, 200)), options, whole);
}
