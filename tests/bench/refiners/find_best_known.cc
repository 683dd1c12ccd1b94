// SPDX-License-Identifier: Apache-2.0
// Selects the problems with room, and finds their best known plans by long runs of several
// refiners:
//     build/release/tests/find_best_known select FILE [--first 0] [--candidates 15]
//         [--evaluations 4000] [--most 40]
// adds to FILE the candidates with room (room_problems.h), until it has --most. It shows how many
// it looked at and selected, and never which refiner found what.
//     build/release/tests/find_best_known improve FILE [--first 0] [--problems N]
//         [--evaluations 5000] [--seed 2] [--refiners greedy,anneal+walks,...]
// searches on: from the seeds, and from the best known plan. Steps are only ever lowered.
//     build/release/tests/find_best_known restate FILE
// writes what the kept plans take today: after a change of the cost model.
#include "ir/base/check.h"
#include "planner/plan_problem.h"
#include "planner/refine/refiner.h"
#include "planner/refine/search.h"
#include "tests/bench/refiners/best_known.h"
#include "tests/bench/refiners/problem_text.h"
#include "tests/bench/refiners/refiner_rows.h"
#include "tests/bench/refiners/room_problems.h"
#include "tests/bench/support/mistakes.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using bench::BestKnown;

constexpr std::string_view kName = "find_best_known";
constexpr std::string_view kUsage =
    "select|improve|restate FILE [--first N] [--candidates N] [--problems N] [--evaluations N] "
    "[--most N] [--seed N] [--refiners LIST]";
constexpr std::size_t kStarts = 8;

struct Settings {
  std::string what, file;
  int first = 0, candidates = 15;
  std::size_t problems = std::numeric_limits<int>::max(), most = 40;
  std::int64_t evaluations = 4000;  // of each refiner
  std::uint64_t seed = 1729;        // of no benchmark
  std::string refiners = "greedy,random,anneal,greedy+walks,anneal+walks,dqn:formula,dqn:shipped";
};

Settings settings_of(int argc, char** argv) {
  Settings settings;
  if (argc < 3) bench::end_with_usage(kName, "it needs what to do, and a file", kUsage);
  settings.what = argv[1];
  settings.file = argv[2];
  if (settings.what != "select" && settings.what != "improve" && settings.what != "restate") {
    bench::end_with_usage(kName, fmt::format("'{}' is nothing to do", settings.what), kUsage);
  }
  for (int i = 3; i < argc; i += 2) {
    const std::string key = argv[i];
    if (i + 1 == argc) bench::end_with(fmt::format("{}: error: '{}' has no value", kName, key));
    const std::string value = argv[i + 1];
    if (key == "--first") {
      settings.first = bench::number_of<int>(kName, value);
    } else if (key == "--candidates") {
      settings.candidates = bench::number_of<int>(kName, value);
    } else if (key == "--problems") {
      settings.problems = bench::number_of<std::size_t>(kName, value);
    } else if (key == "--most") {
      settings.most = bench::number_of<std::size_t>(kName, value);
    } else if (key == "--evaluations") {
      settings.evaluations = bench::number_of<std::int64_t>(kName, value);
    } else if (key == "--seed") {
      settings.seed = bench::number_of<std::uint64_t>(kName, value);
    } else if (key == "--refiners") {
      settings.refiners = value;
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

std::unique_ptr<const Problem> problem_of(GeneratedProblem made) {
  return value_of(
      Problem::make(std::move(made.graph), std::move(made.cluster), std::move(made.training)));
}

/// Runs every refiner from `starts`, and keeps in `known` what is shorter than its step.
void run_long(const Problem& problem, const std::vector<Strategy>& starts, const Settings& settings,
              BestKnown& known) {
  std::istringstream names(settings.refiners);
  for (std::string name; std::getline(names, name, ',');) {
    const bench::RefinerRow row = bench::refiner_row(name, "shipped", true);
    const auto search = make_strategy_search(problem, starts, 1);
    SearchBudget budget(settings.evaluations);
    bench::make_refiner_of(row, settings.seed)
        ->refine(*search, budget, Rng(settings.seed).fork("best known"));
    Strategy found = search->strategy();
    if (!found.flows.empty()) continue;
    const Result<double> seconds = bench::seconds_of(problem, found);
    if (!seconds.ok() || *seconds >= known.best_seconds) continue;
    known.best_seconds = *seconds;
    known.found_by =
        fmt::format("{}, {} evaluations, seed {}", name, settings.evaluations, settings.seed);
    known.strategy = std::move(found);
  }
}

/// Returns the candidate with its best known plan, if it has room.
std::optional<BestKnown> select(int candidate, const Settings& settings) {
  GeneratedProblem made = bench::room_candidate(candidate);
  BestKnown known;
  known.candidate = candidate;
  known.digest = digest_of(bench::text_of(made));
  const auto problem = problem_of(std::move(made));
  const Result<std::vector<Strategy>> starts = seed_strategies(*problem, settings.seed, kStarts);
  if (!starts.ok() || starts->empty()) return {};
  const Result<double> seed = bench::seconds_of(*problem, starts->front());
  if (!seed.ok()) return {};  // fits nowhere
  known.seed_seconds = known.best_seconds = *seed;
  known.found_by = "seed";
  known.strategy = starts->front();
  run_long(*problem, *starts, settings, known);
  if (known.best_seconds > bench::kRoomAtMost * known.seed_seconds) return {};
  return known;
}

void write(const std::string& path, const std::vector<BestKnown>& all) {
  std::ofstream file = bench::open_for_results(path);
  file << bench::print_best_known(all);
  bench::close_results(file, path);
}

int select_all(const Settings& settings) {
  std::vector<BestKnown> all;
  if (std::filesystem::exists(settings.file)) all = bench::read_best_known(settings.file);
  int looked_at = 0;
  for (; looked_at < settings.candidates && all.size() < settings.most; ++looked_at) {
    std::optional<BestKnown> known = select(settings.first + looked_at, settings);
    if (!known) continue;
    all.push_back(*std::move(known));
    write(settings.file, all);
  }
  fmt::print("{} candidates from {} on; {} problems\n", looked_at, settings.first, all.size());
  return 0;
}

int improve_all(const Settings& settings) {
  std::vector<BestKnown> all = bench::read_best_known(settings.file);
  const auto first = std::min(static_cast<std::size_t>(settings.first), all.size());
  const std::size_t end = first + std::min(settings.problems, all.size() - first);
  std::size_t lowered = 0;
  double by = 0;
  for (std::size_t i = first; i < end; ++i) {
    const auto problem = problem_of(bench::room_candidate(all[i].candidate));
    const double before = all[i].best_seconds =
        value_of(bench::seconds_of(*problem, all[i].strategy));
    // The best known plan is not among the starts of the first runs: other ways lead elsewhere.
    run_long(*problem, value_of(seed_strategies(*problem, settings.seed, kStarts)), settings,
             all[i]);
    run_long(*problem, {all[i].strategy}, settings, all[i]);
    if (all[i].best_seconds >= before) continue;
    ++lowered;
    by += 1 - all[i].best_seconds / before;
    write(settings.file, all);
  }
  fmt::print("{} of {} steps lowered, by {:.2f}% on average\n", lowered, end - first,
             lowered == 0 ? 0 : 100 * by / static_cast<double>(lowered));
  return 0;
}

int restate_all(const Settings& settings) {
  std::vector<BestKnown> all = bench::read_best_known(settings.file);
  for (BestKnown& known : all) {
    const auto problem = problem_of(bench::room_candidate(known.candidate));
    known.best_seconds = value_of(bench::seconds_of(*problem, known.strategy));
  }
  write(settings.file, all);
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const agpcs::Settings settings = agpcs::settings_of(argc, argv);
  if (settings.what == "select") return agpcs::select_all(settings);
  return settings.what == "improve" ? agpcs::improve_all(settings) : agpcs::restate_all(settings);
}
