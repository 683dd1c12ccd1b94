// SPDX-License-Identifier: Apache-2.0
// The rule that selects judging problems: a candidate is one if any of several refiners finds a
// step at least 2% shorter than the best seed's, so that the list has room and favours none.
//     build/release/tests/select_judging_problems [--first 0] [--candidates 60] [--training SEED]
// prints the indices of those that are selected (judging_candidates.h), and nothing else, so that
// who selects does not see which refiner found what. The same on every machine, whatever part of
// the candidates a run looks at. --training: of the training generator's problems instead, to see
// how long it takes.
#include "ir/base/check.h"
#include "planner/learn/problems/problem_generator.h"
#include "planner/plan_problem.h"
#include "planner/problem/problem.h"
#include "planner/refine/refiner.h"
#include "planner/refine/search.h"
#include "tests/bench/planning/judging_candidates.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::string_view kName = "select_judging_problems";
constexpr double kRoom = 0.98;               // of the best seed's step
constexpr std::int64_t kEvaluations = 3000;  // of each refiner
constexpr std::size_t kStarts = 8;
constexpr std::uint64_t kSeed = 1729;  // of no benchmark
constexpr std::string_view kRefiners[] = {"greedy", "anneal", "random", "dqn"};

struct Settings {
  int first = 0, candidates = 60;
  std::optional<std::uint64_t> training;
};

Settings settings_of(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    if (i + 1 == argc) bench::end_with(fmt::format("{}: error: '{}' has no value", kName, key));
    const std::string value = argv[i + 1];
    if (key == "--first") {
      settings.first = bench::number_of<int>(kName, value);
    } else if (key == "--candidates") {
      settings.candidates = bench::number_of<int>(kName, value);
    } else if (key == "--training") {
      settings.training = bench::number_of<std::uint64_t>(kName, value);
    } else {
      bench::end_with(fmt::format("{}: error: unknown option '{}'", kName, key));
    }
  }
  return settings;
}

template <typename T>
T value_of(Result<T> result) {
  AGPCS_CHECK(result.ok(), "{}", result.status().message());
  return *std::move(result);
}

bool has_room(GeneratedProblem made) {
  const auto problem = value_of(
      Problem::make(std::move(made.graph), std::move(made.cluster), std::move(made.training)));
  Result<std::vector<Strategy>> starts = seed_strategies(*problem, kSeed, kStarts);
  if (!starts.ok() || starts->empty()) return false;  // fits nowhere
  return std::any_of(std::begin(kRefiners), std::end(kRefiners), [&](std::string_view name) {
    const auto search = make_strategy_search(*problem, *starts, 1);
    SearchBudget budget(kEvaluations);
    value_of(make_refiner(name))->refine(*search, budget, Rng(kSeed).fork("select"));
    return search->outcome().cost <= kRoom;
  });
}

int select_main(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  for (int i = settings.first; i < settings.first + settings.candidates; ++i) {
    const bool selected = has_room(settings.training ? generate_problem(*settings.training, i)
                                                     : bench::judging_candidate(i));
    if (!selected) continue;
    fmt::print("{}\n", i);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::select_main(argc, argv); }
