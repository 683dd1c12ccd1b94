// SPDX-License-Identifier: Apache-2.0
// What refiners find at equal numbers of evaluations, on problems that no policy was trained on:
//     build/release/tests/refiner_bench [--list judge|unseen] [--training SEED] [--problems N]
//         [--first K] [--budgets 500,2000,10000] [--refiners dqn,greedy,anneal,random]
//         [--policy FILE] [--no-imagination] [--seeds 0] [--starts 8] [--threads 1] [--csv FILE]
//         [--seeders] [--per-problem spends-the-list]
// --list: the 60 judging problems, of which only aggregates are shown, or the 40 of regression.
// --per-problem: shows the judging problems one by one, too: what is tuned after that cannot be
// judged by them. --training: on as many problems of the training generator instead, to tune on.
// --refiners: rows, refiner[:policy][+walks|-walks] (refiner_rows.h), such as dqn:formula or
// anneal+walks. --policy: of `dqn` where the row names none. --no-imagination: no row walks by the
// rough step. --seeders: counts whose seed is the best, and does not search.
//
// Rows are compared with the first one, by problem and seed; intervals are Student's t, 95%, over
// problems, of means over seeds.
#include "ir/base/check.h"
#include "planner/learn/problems/problem_generator.h"
#include "planner/plan_problem.h"
#include "planner/problem/problem.h"
#include "planner/refine/search.h"
#include "tests/bench/planning/problem_list.h"
#include "tests/bench/planning/refiner_rows.h"
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
  bench::ProblemList list = bench::judging_list();
  bool spends_the_list = false;
  std::optional<std::size_t> problems;
  std::size_t first = 0, starts = 8;
  std::string refiners = "dqn,greedy,anneal,random", policy = "shipped";
  bool imagination = true, seeders = false;
  std::vector<bench::RefinerRow> rows;
  std::vector<std::int64_t> budgets = {500, 2000, 10000};
  std::vector<std::uint64_t> seeds = {0};
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
    settings.seeds = numbers_of<std::uint64_t>(value);
  } else if (key == "--threads") {
    settings.threads = number_of<int>(value);
  } else if (key == "--training") {
    settings.list = bench::training_list(number_of<std::uint64_t>(value));
  } else if (key == "--list") {
    settings.list = bench::find_list(value);
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
    settings.budgets = numbers_of<std::int64_t>(value);
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
    settings.rows.push_back(bench::refiner_row(item, settings.policy, settings.imagination));
  }
  need(!settings.rows.empty(), "--refiners names none");
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

/// What a row found on a problem with a budget and a seed.
struct Found {
  double cost = 0;  ///< relative to the best seed
  double evaluations = 0;
  double seconds = 0;  ///< of the processor
};

/// By row and budget: one for each seed.
using Key = std::pair<std::size_t, std::int64_t>;
struct Findings {
  std::string problem;
  std::map<Key, std::vector<Found>> found;

  double mean(const Key& key, double Found::*figure) const {
    double sum = 0;
    for (const Found& one : found.at(key)) sum += one.*figure;
    return sum / static_cast<double>(found.at(key).size());
  }
};

void search(const Problem& problem, const std::vector<Strategy>& starts, std::uint64_t seed,
            const Settings& settings, Findings& findings) {
  for (std::size_t row = 0; row < settings.rows.size(); ++row) {
    const std::unique_ptr<Refiner> refiner = bench::make_refiner_of(settings.rows[row], seed);
    for (const std::int64_t budget : settings.budgets) {
      const double before = bench::processor_seconds();
      const auto point = make_strategy_search(problem, starts, settings.threads);
      SearchBudget evaluations(budget);
      refiner->refine(*point, evaluations, Rng(seed).fork("refine"));
      findings.found[{row, budget}].push_back({point->outcome().cost,
                                               static_cast<double>(evaluations.made()),
                                               bench::processor_seconds() - before});
    }
  }
}

Findings run(GeneratedProblem made, const Settings& settings) {
  Findings findings = {std::move(made.name), {}};
  const auto problem = value_of(
      Problem::make(std::move(made.graph), std::move(made.cluster), std::move(made.training)));
  for (const std::uint64_t seed : settings.seeds) {
    const std::vector<Strategy> starts = value_of(seed_strategies(*problem, seed, settings.starts));
    AGPCS_CHECK(!starts.empty(), "{} has no seeds", findings.problem);
    search(*problem, starts, seed, settings, findings);
  }
  return findings;
}

std::string title_of(const Settings& settings, const Key& key) {
  return fmt::format("{}@{}", settings.rows[key.first].name, key.second);
}

/// Row by row, budget by budget.
std::vector<Key> keys_of(const Settings& settings) {
  std::vector<Key> keys;
  for (std::size_t row = 0; row < settings.rows.size(); ++row) {
    for (const std::int64_t budget : settings.budgets) keys.emplace_back(row, budget);
  }
  return keys;
}

std::size_t width_of(const Settings& settings, const Key& key) {
  return std::max<std::size_t>(10, title_of(settings, key).size());
}

void print_head(const Settings& settings) {
  fmt::print("{:40}", "step / best seed");
  for (const Key& key : keys_of(settings)) {
    fmt::print(" {:>{}}", title_of(settings, key), width_of(settings, key));
  }
  fmt::print("\n");
}

void print_problem(const Settings& settings, const Findings& findings) {
  fmt::print("{:40}", findings.problem);
  for (const Key& key : keys_of(settings)) {
    fmt::print(" {:{}.4f}", findings.mean(key, &Found::cost), width_of(settings, key));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

double mean_over(const std::vector<Findings>& all, const Key& key, double Found::*figure) {
  double sum = 0;
  for (const Findings& findings : all) sum += findings.mean(key, figure);
  return sum / static_cast<double>(all.size());
}

/// The costs of one less those of the other, by problem: means over seeds.
std::vector<double> differences(const std::vector<Findings>& all, const Key& one,
                                const Key& other) {
  std::vector<double> result;
  for (const Findings& findings : all) {
    result.push_back(findings.mean(one, &Found::cost) - findings.mean(other, &Found::cost));
  }
  return result;
}

void print_rows(const std::vector<Findings>& all, const Settings& settings) {
  fmt::print(
      "\n| refiner | budget | evaluations | step / best seed | more than {} | processor time |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: |\n",
      settings.rows.front().name);
  for (const Key& key : keys_of(settings)) {
    const Key first = {0, key.second};
    const bench::Interval more = bench::interval(differences(all, key, first));
    fmt::print("| {} | {} | {:.0f} | {:.4f} | {} | {:.2f} s |\n", settings.rows[key.first].name,
               key.second, mean_over(all, key, &Found::evaluations),
               mean_over(all, key, &Found::cost),
               key == first ? "" : fmt::format("{:+.4f} +- {:.4f}", more.mean, more.half),
               mean_over(all, key, &Found::seconds));
  }
}

/// Mean and worst of one's cost divided by the other's, over problems and seeds.
void print_ratio(const std::vector<Findings>& all, const Settings& settings, const Key& one,
                 const Key& other) {
  double sum = 0, worst = 0;
  std::size_t count = 0, longer = 0;
  for (const Findings& findings : all) {
    for (std::size_t s = 0; s < settings.seeds.size(); ++s) {
      const double ratio = findings.found.at(one)[s].cost / findings.found.at(other)[s].cost;
      sum += ratio;
      worst = std::max(worst, ratio);
      ++count;
      if (ratio > 1.01) ++longer;
    }
  }
  fmt::print("| {} | {} | {:.4f} | {:.4f} | {} of {} |\n", title_of(settings, one),
             title_of(settings, other), sum / static_cast<double>(count), worst, longer, count);
}

void print_ratios(const std::vector<Findings>& all, const Settings& settings) {
  fmt::print(
      "\n| step of | / step of | mean | worst | more than 1% longer |\n"
      "| --- | --- | ---: | ---: | ---: |\n");
  for (const std::int64_t budget : settings.budgets) {
    for (std::size_t row = 1; row < settings.rows.size(); ++row) {
      print_ratio(all, settings, {0, budget}, {row, budget});
    }
  }
  const auto [least, most] = std::minmax_element(settings.budgets.begin(), settings.budgets.end());
  if (*least == *most) return;
  for (std::size_t row = 1; row < settings.rows.size(); ++row) {
    print_ratio(all, settings, {0, *least}, {row, *most});
  }
}

void write_csv(std::ofstream& out, const Settings& settings, const std::vector<Findings>& all) {
  out << "problem,seed,refiner,budget,cost,evaluations,seconds\n";
  for (const Findings& findings : all) {
    for (const auto& [key, found] : findings.found) {
      for (std::size_t s = 0; s < found.size(); ++s) {
        out << fmt::format("{},{},{},{},{},{},{:.3f}\n", findings.problem, settings.seeds[s],
                           settings.rows[key.first].name, key.second, found[s].cost,
                           found[s].evaluations, found[s].seconds);
      }
    }
  }
}

/// By seeder, on how many problems its best seed is the best of all (a tie goes to the seeder that
/// comes first), and by how much the next seeder's is longer there, on average.
class BestSeeds {
 public:
  void add(GeneratedProblem made, std::uint64_t seed) {
    const auto problem = value_of(
        Problem::make(std::move(made.graph), std::move(made.cluster), std::move(made.training)));
    PlanOptions options;
    options.seed = seed;
    options.all_reduce = AllReduceChoice::kRing;  // seeds are looked at before it is chosen
    const Planned planned = value_of(plan_problem(*problem, options));
    const Attempt* best = nullptr;
    for (const Attempt& attempt : planned.seeders) {
      if (is_shorter(attempt, best)) best = &attempt;
    }
    const Attempt* next = nullptr;
    for (const Attempt& attempt : planned.seeders) {
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

int bench_main(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  std::ofstream csv;
  if (!settings.csv.empty()) csv = bench::open_for_results(settings.csv);
  std::vector<Findings> all;
  BestSeeds best;
  const bool shows_each = settings.shows_each() && !settings.seeders;
  if (shows_each) print_head(settings);
  const std::size_t rest = settings.list.size - std::min(settings.first, settings.list.size);
  const std::size_t count = std::min(rest, settings.problems.value_or(settings.list.usual));
  for (std::size_t i = settings.first; i < settings.first + count; ++i) {
    GeneratedProblem made = settings.list.make(i);
    if (settings.seeders) {
      best.add(std::move(made), settings.seeds.front());
      continue;
    }
    all.push_back(run(std::move(made), settings));
    if (shows_each) print_problem(settings, all.back());
  }
  if (settings.seeders) best.print();
  if (all.empty()) return 0;
  print_rows(all, settings);
  print_ratios(all, settings);
  if (!settings.csv.empty()) {
    write_csv(csv, settings, all);
    bench::close_results(csv, settings.csv);
  }
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::bench_main(argc, argv); }
