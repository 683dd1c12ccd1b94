// SPDX-License-Identifier: Apache-2.0
// BestSeeds: which seeder has the best seed, over the problems of a list.
#pragma once

#include "ir/base/check.h"
#include "planner/learn/problems/problem_generator.h"
#include "planner/plan_problem.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace agpcs::bench {

/// By seeder, on how many problems its best seed is the best of all (a tie goes to the seeder that
/// comes first), and by how much the next seeder's is longer there, on average.
class BestSeeds {
 public:
  void add(GeneratedProblem made, std::uint64_t seed) {
    const auto problem =
        Problem::make(std::move(made.graph), std::move(made.cluster), std::move(made.training));
    AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
    PlanOptions options;
    options.seed = seed;
    options.all_reduce = AllReduceChoice::kRing;  // seeds are looked at before it is chosen
    const Result<Planned> planned = plan_problem(**problem, options);
    AGPCS_CHECK(planned.ok(), "{}", planned.status().message());
    const Attempt* best = nullptr;
    for (const Attempt& attempt : planned->seeders) {
      if (is_shorter(attempt, best)) best = &attempt;
    }
    const Attempt* next = nullptr;
    for (const Attempt& attempt : planned->seeders) {
      if (&attempt != best && is_shorter(attempt, next)) next = &attempt;
    }
    ++problems_;
    if (best == nullptr) return;
    auto& [times, ahead] = best_[best->name];
    ++times;
    if (next != nullptr) ahead += *next->step_seconds / *best->step_seconds - 1;
  }

  void print() const {
    fmt::print(
        "| seeder | has the best seed | the next one's is longer by |\n| --- | ---: | ---: |\n");
    for (const auto& [name, counted] : best_) {
      fmt::print("| {} | {} of {} | {:.1f}% |\n", name, counted.first, problems_,
                 100 * counted.second / counted.first);
    }
  }

 private:
  static bool is_shorter(const Attempt& attempt, const Attempt* than) {
    return attempt.step_seconds && (than == nullptr || *attempt.step_seconds < *than->step_seconds);
  }

  std::map<std::string, std::pair<int, double>> best_;
  int problems_ = 0;
};

}  // namespace agpcs::bench
