// SPDX-License-Identifier: Apache-2.0
// What refiners find at equal numbers of evaluations, on problems that no policy was trained on:
//     build/release/tests/refiner_bench [--list room|sixty|unseen] [--training SEED] [--tight SEED]
//         [--problems N] [--first K] [--budgets 500,2000,10000]
//         [--refiners dqn,greedy,anneal,random] [--policy FILE] [--no-imagination]
//         [--seeds 1,2,3] [--starts 8] [--threads 1] [--csv FILE] [--seeders]
//         [--per-problem spends-the-list]
// --list: the problems with room, which judge, so that only aggregates are shown; or the 60 or 40
// of regression. --per-problem: shows the judging problems one by one, too: what is tuned after
// that cannot be judged by them. --training, --tight: on as many problems of the training
// generator instead, usual or tight ones, to tune on.
// --refiners: rows, refiner[:policy][+walks|-walks] (refiner_rows.h), such as dqn:formula or
// anneal+walks. --policy: of `dqn` where the row names none. --no-imagination: no row walks by the
// rough step. --seeders: counts whose seed is the best, and does not search.
//
// Rows are compared with the first one, by problem and seed; intervals are Student's t, 95%, over
// problems, of means over seeds. Steps of the problems with room are compared with those of their
// best known plans (best_known.h), too.
#include "ir/base/check.h"
#include "planner/learn/problems/problem_generator.h"
#include "planner/plan_problem.h"
#include "planner/problem/problem.h"
#include "planner/refine/search.h"
#include "tests/bench/refiners/best_known.h"
#include "tests/bench/refiners/best_seeds.h"
#include "tests/bench/refiners/problem_list.h"
#include "tests/bench/refiners/refiner_rows.h"
#include "tests/bench/refiners/refiner_tables.h"
#include "tests/bench/support/measuring.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

struct Settings {
  bench::ProblemList list = bench::room_list();
  bool spends_the_list = false;
  std::optional<std::size_t> problems;
  std::size_t first = 0, starts = 8;
  std::string refiners = "dqn,greedy,anneal,random", policy = "shipped";
  bool imagination = true, seeders = false;
  bench::Compared compared = {{}, {500, 2000, 10000}, {1, 2, 3}, false};
  int threads = 1;
  std::string csv;

  bool shows_each() const { return !list.aggregates_only || spends_the_list; }
};

std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) items.push_back(item);
  return items;
}

/// Ends the benchmark unless `holds`: the message is about its call.
template <typename... Args>
void need(bool holds, fmt::format_string<Args...> message, Args&&... args) {
  if (holds) return;
  bench::end_with("refiner_bench: error: " + fmt::format(message, std::forward<Args>(args)...));
}

template <typename T>
T number_of(const std::string& text) {
  return bench::number_of<T>("refiner_bench", text);
}

template <typename T>
std::vector<T> numbers_of(const std::string& text) {
  std::vector<T> numbers;
  for (const std::string& item : items_of(text)) numbers.push_back(number_of<T>(item));
  need(!numbers.empty(), "'{}' has no number", text);
  return numbers;
}

void set(Settings& settings, const std::string& key, const std::string& value) {
  if (key == "--problems") {
    settings.problems = number_of<std::size_t>(value);
  } else if (key == "--first") {
    settings.first = number_of<std::size_t>(value);
  } else if (key == "--starts") {
    settings.starts = number_of<std::size_t>(value);
  } else if (key == "--seeds") {
    settings.compared.seeds = numbers_of<std::uint64_t>(value);
  } else if (key == "--threads") {
    settings.threads = number_of<int>(value);
  } else if (key == "--training") {
    settings.list = bench::training_list(number_of<std::uint64_t>(value));
  } else if (key == "--list") {
    settings.list = bench::find_list(value);
  } else if (key == "--tight") {
    settings.list = bench::tight_list(number_of<std::uint64_t>(value));
  } else if (key == "--per-problem") {
    need(value == "spends-the-list", "--per-problem takes 'spends-the-list', not '{}'", value);
    settings.spends_the_list = true;
  } else if (key == "--csv") {
    settings.csv = value;
  } else if (key == "--refiners") {
    settings.refiners = value;
  } else if (key == "--policy") {
    settings.policy = value;
  } else if (key == "--budgets") {
    settings.compared.budgets = numbers_of<std::int64_t>(value);
  } else {
    need(false, "unknown option '{}'", key);
  }
}

Settings settings_of(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i];
    if (key == "--no-imagination") {
      settings.imagination = false;
    } else if (key == "--seeders") {
      settings.seeders = true;
    } else {
      need(i + 1 < argc, "'{}' has no value", key);
      set(settings, key, argv[++i]);
    }
  }
  for (const std::string& item : items_of(settings.refiners)) {
    settings.compared.rows.push_back(
        bench::refiner_row(item, settings.policy, settings.imagination));
  }
  need(!settings.compared.rows.empty(), "--refiners names none");
  settings.compared.best_is_known = settings.list.best_is_known;
  need(settings.shows_each() || (!settings.problems && settings.first == 0 && settings.csv.empty()),
       "the list '{}' is looked at as a whole: no --problems, --first or --csv",
       settings.list.name);
  return settings;
}

template <typename T>
T value_of(Result<T> result) {
  AGPCS_CHECK(result.ok(), "{}", result.status().message());
  return *std::move(result);
}

/// `best_known`: the seconds of the best known plan, if one is kept.
void search(const Problem& problem, const std::vector<Strategy>& starts, std::uint64_t seed,
            std::optional<double> best_known, const Settings& settings, bench::Findings& findings) {
  for (std::size_t row = 0; row < settings.compared.rows.size(); ++row) {
    const auto refiner = bench::make_refiner_of(settings.compared.rows[row], seed);
    for (const std::int64_t budget : settings.compared.budgets) {
      const double before = bench::processor_seconds();
      const auto point = make_strategy_search(problem, starts, settings.threads);
      SearchBudget evaluations(budget);
      refiner->refine(*point, evaluations, Rng(seed).fork("refine"));
      const double seconds = bench::processor_seconds() - before;
      findings.found[{row, budget}].push_back(
          {point->outcome().cost, best_known ? point->score().step_seconds / *best_known - 1 : 0,
           static_cast<double>(evaluations.made()), seconds});
    }
  }
}

bench::Findings run(GeneratedProblem made, const std::optional<Strategy>& best_known,
                    const Settings& settings) {
  bench::Findings findings = {std::move(made.name), {}};
  const auto problem = value_of(
      Problem::make(std::move(made.graph), std::move(made.cluster), std::move(made.training)));
  std::optional<double> known;
  if (best_known) known = value_of(bench::seconds_of(*problem, *best_known));
  for (const std::uint64_t seed : settings.compared.seeds) {
    const std::vector<Strategy> starts = value_of(seed_strategies(*problem, seed, settings.starts));
    AGPCS_CHECK(!starts.empty(), "{} has no seeds", findings.problem);
    search(*problem, starts, seed, known, settings, findings);
  }
  return findings;
}

void write_csv(std::ofstream& out, const Settings& settings,
               const std::vector<bench::Findings>& all) {
  out << "problem,seed,refiner,budget,cost,gap,evaluations,seconds\n";
  for (const bench::Findings& findings : all) {
    for (const auto& [key, found] : findings.found) {
      for (std::size_t s = 0; s < found.size(); ++s) {
        out << fmt::format("{},{},{},{},{},{},{},{:.3f}\n", findings.problem,
                           settings.compared.seeds[s], settings.compared.rows[key.first].name,
                           key.second, found[s].cost, found[s].gap, found[s].evaluations,
                           found[s].seconds);
      }
    }
  }
}

int bench_main(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  std::ofstream csv;
  if (!settings.csv.empty()) csv = bench::open_for_results(settings.csv);
  std::vector<bench::Findings> all;
  std::vector<bench::BestKnown> known;
  if (settings.list.best_is_known) known = bench::read_best_known(bench::best_known_path());
  bench::BestSeeds best;
  const bool shows_each = settings.shows_each() && !settings.seeders;
  if (shows_each) print_head(settings.compared);
  const std::size_t rest = settings.list.size - std::min(settings.first, settings.list.size);
  const std::size_t count = std::min(rest, settings.problems.value_or(settings.list.usual));
  for (std::size_t i = settings.first; i < settings.first + count; ++i) {
    GeneratedProblem made = settings.list.make(i);
    if (settings.seeders) {
      best.add(std::move(made), settings.compared.seeds.front());
      continue;
    }
    std::optional<Strategy> best_known;
    if (settings.list.best_is_known) best_known = known.at(i).strategy;
    all.push_back(run(std::move(made), best_known, settings));
    if (shows_each) print_problem(settings.compared, all.back());
  }
  if (settings.seeders) best.print();
  if (all.empty()) return 0;
  print_rows(all, settings.compared);
  print_ratios(all, settings.compared);
  if (!settings.csv.empty()) {
    write_csv(csv, settings, all);
    bench::close_results(csv, settings.csv);
  }
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::bench_main(argc, argv); }
