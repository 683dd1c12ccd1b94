// SPDX-License-Identifier: Apache-2.0
// Whether more hardware ever makes a plan worse, and whether a pipeline made by hand beats one:
// plans generated problems before and after their cluster gets a host, memory or bandwidth.
//
//     more_hardware_bench [problems: 500] [first: 0] [refiner: dqn] [evaluations: the default]
//
// Prints a line for each plan that more hardware makes over 1% longer or turns into a refusal, and
// for each that a hand-made pipeline beats; then a table. Exit code 1: more than 1% of plans are
// over 1% longer, one is over 3% longer or refused, or one is beaten by hand.
#include "planner/plan_problem.h"
#include "planner/refine/refiner.h"
#include "tests/bench/planning/more_hardware.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace agpcs::bench {
namespace {

constexpr double kNoPlan = std::numeric_limits<double>::infinity();
/// What differs by less is equal: sums of seconds in another order.
constexpr double kEqual = 1e-9;

struct Tally {
  int refused = 0, planned = 0, lost = 0, beaten = 0;
  std::vector<double> longer;  // step after / before, where both have plans
  double most_beaten = 1;      // plan / pipeline made by hand
};

double planned_seconds(const Problem& problem, const PlanOptions& options) {
  const Result<Planned> planned = plan_problem(problem, options);
  return planned.ok() ? planned->best.estimate.step_seconds : kNoPlan;
}

void compare_by_hand(const Problem& problem, double seconds, const std::string& name,
                     Tally& tally) {
  const HandMade made = best_hand_made(problem);
  if (made.seconds >= seconds * (1 - kEqual)) return;
  ++tally.beaten;
  tally.most_beaten = std::max(tally.most_beaten, seconds / made.seconds);
  std::string stages;
  for (const StageSpec& stage : made.strategy.stages) {
    stages += fmt::format(" {}", stage.devices.size());
  }
  fmt::print("{}: beaten by hand, {:.6g} against {:.6g} s: {} micro-batches{}, stages of{}\n", name,
             seconds, made.seconds, made.strategy.micro_batches,
             made.strategy.stages.front().recompute ? ", recomputed" : "", stages);
}

void try_problem(int index, const PlanOptions& options, Tally& tally) {
  const GrowingProblem growing = growing_problem(index);
  const std::string& name = growing.before.name;
  const auto before = problem_on(growing.before, growing.before.cluster);
  const auto after = problem_on(growing.before, growing.after);
  const double old_seconds = planned_seconds(*before, options);
  const double new_seconds = planned_seconds(*after, options);
  compare_by_hand(*before, old_seconds, name + " before", tally);
  compare_by_hand(*after, new_seconds, name + " after", tally);
  ++(old_seconds < kNoPlan ? tally.planned : tally.refused);
  if (old_seconds == kNoPlan) return;
  const bool lost = new_seconds == kNoPlan;
  if (lost) ++tally.lost;
  if (!lost) tally.longer.push_back(new_seconds / old_seconds);
  if (new_seconds <= 1.01 * old_seconds) return;
  fmt::print("{}: {} makes {:.6g} s {}\n", name, kMoreNames[static_cast<int>(growing.more)],
             old_seconds, lost ? "a refusal" : fmt::format("{:.6g} s", new_seconds));
}

double worst_of(const Tally& tally) {
  return tally.longer.empty() ? 1 : *std::max_element(tally.longer.begin(), tally.longer.end());
}

std::ptrdiff_t over(const Tally& tally, double ratio) {
  return std::count_if(tally.longer.begin(), tally.longer.end(),
                       [&](double each) { return each > ratio; });
}

int run(int problems, int first, const PlanOptions& options) {
  Tally tallies[std::size(kMoreNames)];
  for (int index = first; index < first + problems; ++index) {
    try_problem(index, options, tallies[index % 4]);
    std::fflush(stdout);
  }
  fmt::print(
      "\n| more | refused before | planned before | refused after | over 1% longer | worst | mean "
      "| "
      "beaten by hand | most |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  bool good = true;
  std::ptrdiff_t longer = 0, planned = 0;
  for (std::size_t i = 0; i < std::size(kMoreNames); ++i) {
    const Tally& tally = tallies[i];
    double sum = 0;
    for (const double each : tally.longer) sum += each;
    fmt::print("| {} | {} | {} | {} | {} | {:.4f} | {:.4f} | {} | {:.4f} |\n", kMoreNames[i],
               tally.refused, tally.planned, tally.lost, over(tally, 1.01), worst_of(tally),
               sum / static_cast<double>(std::max<std::size_t>(1, tally.longer.size())),
               tally.beaten, tally.most_beaten);
    longer += over(tally, 1.01);
    planned += tally.planned;
    good = good && tally.lost == 0 && tally.beaten == 0 && worst_of(tally) <= 1.03;
  }
  return good && 100 * longer <= planned ? 0 : 1;
}

}  // namespace
}  // namespace agpcs::bench

int main(int argc, char** argv) {
  const auto number = [&](int index, std::int64_t otherwise) {
    return argc > index ? agpcs::bench::number_of<std::int64_t>("more_hardware_bench", argv[index])
                        : otherwise;
  };
  const auto refiner = agpcs::make_refiner(argc > 3 ? argv[3] : "dqn");
  if (!refiner.ok()) {
    agpcs::bench::end_with("more_hardware_bench: error: " + refiner.status().message());
  }
  agpcs::PlanOptions options;
  options.refiner = refiner->get();
  options.budget = number(4, 0);
  return agpcs::bench::run(static_cast<int>(number(1, 500)), static_cast<int>(number(2, 0)),
                           options);
}
