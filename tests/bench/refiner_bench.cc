// SPDX-License-Identifier: Apache-2.0
// What refiners find at equal numbers of evaluations, on problems that no policy was trained on:
//     build/release/tests/refiner_bench [--problems N] [--first K] [--budgets 500,2000,10000]
//         [--refiners dqn,greedy,anneal,random] [--starts 8] [--seed 0] [--threads 1] [--csv FILE]
//         [--training SEED]
// --training: on as many problems of the training generator instead, to tune on.
#include "ir/check.h"
#include "planner/plan_problem.h"
#include "planner/problem.h"
#include "planner/problem_generator.h"
#include "planner/refiner.h"
#include "planner/strategy_search.h"
#include "tests/bench/mistakes.h"
#include "tests/bench/unseen_problems.h"

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

constexpr std::string_view kLearned = "dqn";

struct Settings {
  std::size_t problems = std::size(bench::kUnseenProblems), first = 0, starts = 8;
  std::vector<std::string> refiners = {std::string(kLearned), "greedy", "anneal", "random"};
  std::vector<std::int64_t> budgets = {500, 2000, 10000};
  std::uint64_t seed = 0;
  int threads = 1;
  std::string csv;
  std::optional<std::uint64_t> training;
};

std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) items.push_back(item);
  return items;
}

Settings settings_of(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--problems") {
      settings.problems = std::stoul(value);
    } else if (key == "--first") {
      settings.first = std::stoul(value);
    } else if (key == "--starts") {
      settings.starts = std::stoul(value);
    } else if (key == "--seed") {
      settings.seed = std::stoull(value);
    } else if (key == "--threads") {
      settings.threads = std::stoi(value);
    } else if (key == "--training") {
      settings.training = std::stoull(value);
    } else if (key == "--csv") {
      settings.csv = value;
    } else if (key == "--refiners") {
      settings.refiners = items_of(value);
    } else if (key == "--budgets") {
      settings.budgets.clear();
      for (const std::string& item : items_of(value)) settings.budgets.push_back(std::stoll(item));
    } else {
      bench::end_with(fmt::format("refiner_bench: error: unknown option '{}'", key));
    }
  }
  if (argc % 2 == 0) {
    bench::end_with(fmt::format("refiner_bench: error: '{}' has no value", argv[argc - 1]));
  }
  return settings;
}

template <typename T>
T value_of(Result<T> result) {
  AGPCS_CHECK(result.ok(), "{}", result.status().message());
  return *std::move(result);
}

/// Costs relative to the best seed, by refiner and budget.
using Costs = std::map<std::pair<std::string, std::int64_t>, double>;

Costs run(GeneratedProblem made, const Settings& settings) {
  const std::string name = made.name;
  const auto problem = value_of(
      Problem::make(std::move(made.graph), std::move(made.cluster), std::move(made.training)));
  const std::vector<Strategy> starts =
      value_of(seed_strategies(*problem, settings.seed, settings.starts));
  AGPCS_CHECK(!starts.empty(), "{} has no seeds", name);
  Costs costs;
  for (const std::string& refiner_name : settings.refiners) {
    for (const std::int64_t budget : settings.budgets) {
      const auto search = make_strategy_search(*problem, starts, settings.threads);
      const std::unique_ptr<Refiner> refiner = value_of(make_refiner(refiner_name));
      SearchBudget evaluations(budget);
      refiner->refine(*search, evaluations, Rng(settings.seed).fork("refine"));
      costs[{refiner_name, budget}] = search->outcome().cost;
    }
  }
  return costs;
}

void print_head(const Settings& settings) {
  fmt::print("{:40}", "problem");
  for (const std::string& name : settings.refiners) {
    for (const std::int64_t budget : settings.budgets) {
      fmt::print(" {:>13}", fmt::format("{}@{}", name, budget));
    }
  }
  fmt::print("\n");
}

void print_row(const std::string& title, const Settings& settings, const Costs& costs) {
  fmt::print("{:40}", title);
  for (const std::string& name : settings.refiners) {
    for (const std::int64_t budget : settings.budgets) {
      fmt::print(" {:13.4f}", costs.at({name, budget}));
    }
  }
  fmt::print("\n");
  std::fflush(stdout);
}

/// Mean and worst of one's cost divided by the other's, over the problems.
void print_ratio(const std::vector<Costs>& all, const std::string& one, std::int64_t one_budget,
                 const std::string& other, std::int64_t other_budget) {
  double sum = 0, worst = 0;
  std::size_t more_than_1_percent = 0;
  for (const Costs& costs : all) {
    const double ratio = costs.at({one, one_budget}) / costs.at({other, other_budget});
    sum += ratio;
    worst = std::max(worst, ratio);
    if (ratio > 1.01) ++more_than_1_percent;
  }
  fmt::print("{:>10} {:>14} {:8.4f} {:8.4f} {:6}\n", fmt::format("{}@{}", one, one_budget),
             fmt::format("{}@{}", other, other_budget), sum / static_cast<double>(all.size()),
             worst, more_than_1_percent);
}

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void print_summary(const std::vector<Costs>& all, const Settings& settings) {
  if (all.empty()) return;
  fmt::print("\n{:10} {:>14} {:>8}\n", "refiner", "budget", "mean");
  for (const std::string& name : settings.refiners) {
    for (const std::int64_t budget : settings.budgets) {
      double sum = 0;
      for (const Costs& costs : all) sum += costs.at({name, budget});
      fmt::print("{:10} {:14} {:8.4f}\n", name, budget, sum / static_cast<double>(all.size()));
    }
  }
  const std::string learned(kLearned);
  if (!has(settings.refiners, learned)) return;
  fmt::print("\n{:>10} {:>14} {:>8} {:>8} {:>6}\n", "step time", "divided by", "mean", "worst",
             ">1.01");
  for (const std::int64_t budget : settings.budgets) {
    for (const std::string& name : settings.refiners) {
      if (name != learned) print_ratio(all, learned, budget, name, budget);
    }
  }
  const auto [least, most] = std::minmax_element(settings.budgets.begin(), settings.budgets.end());
  if (has(settings.refiners, "anneal") && *least != *most) {
    print_ratio(all, learned, *least, "anneal", *most);
  }
}

void write_csv(std::ofstream& out, const std::vector<std::string>& titles,
               const std::vector<Costs>& all) {
  out << "problem,refiner,budget,cost\n";
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const auto& [key, cost] : all[i]) {
      out << fmt::format("{},{},{},{}\n", titles[i], key.first, key.second, cost);
    }
  }
}

int bench_main(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  std::ofstream csv;
  if (!settings.csv.empty()) csv = bench::open_for_results(settings.csv);
  std::vector<std::string> titles;
  std::vector<Costs> all;
  print_head(settings);
  const std::size_t end = settings.first + settings.problems;
  for (std::size_t i = settings.first; i < end; ++i) {
    if (!settings.training && i >= std::size(bench::kUnseenProblems)) break;
    const ProblemSpec* const spec = settings.training ? nullptr : &bench::kUnseenProblems[i];
    GeneratedProblem made = spec != nullptr
                                ? generate_problem(*spec)
                                : generate_problem(*settings.training, static_cast<int>(i));
    titles.push_back(spec != nullptr
                         ? fmt::format("{}-{}-{}", spec->name, spec->family, spec->cluster)
                         : made.name);
    all.push_back(run(std::move(made), settings));
    print_row(titles.back(), settings, all.back());
  }
  print_summary(all, settings);
  if (!settings.csv.empty()) {
    write_csv(csv, titles, all);
    bench::close_results(csv, settings.csv);
  }
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::bench_main(argc, argv); }
