// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/refiners/refiner_tables.h"

#include "tests/bench/support/measuring.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace agpcs::bench {
namespace {

/// Row by row, budget by budget.
std::vector<Key> keys_of(const Compared& compared) {
  std::vector<Key> keys;
  for (std::size_t row = 0; row < compared.rows.size(); ++row) {
    for (const std::int64_t budget : compared.budgets) keys.emplace_back(row, budget);
  }
  return keys;
}

std::size_t width_of(const Compared& compared, const Key& key) {
  return std::max<std::size_t>(10, title_of(compared, key).size());
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

std::string text_of(const Interval& interval) {
  return fmt::format("{:+.4f} +- {:.4f}", interval.mean, interval.half);
}

/// Returns how many of the searches have a gap in a range.
std::size_t within(const std::vector<Found>& searches, double least, double most) {
  return static_cast<std::size_t>(
      std::count_if(searches.begin(), searches.end(),
                    [&](const Found& one) { return one.gap > least && one.gap < most; }));
}

/// The columns about the best known plan.
std::string gap_text(const std::vector<Findings>& all, const Key& key) {
  std::vector<double> gaps;
  std::size_t near = 0, count = 0;
  for (const Findings& findings : all) {
    gaps.push_back(findings.mean(key, &Found::gap));
    near += within(findings.found.at(key), -1, 0.01);
    count += findings.found.at(key).size();
  }
  const Interval gap = interval(gaps);
  return fmt::format(" {:.2f}% +- {:.2f}% | {} of {} |", 100 * gap.mean, 100 * gap.half, near,
                     count);
}

/// Returns the number of searches that found a step shorter than the best known.
std::size_t shorter_than_known(const std::vector<Findings>& all) {
  std::size_t count = 0;
  for (const Findings& findings : all) {
    for (const auto& [key, searches] : findings.found) count += within(searches, -1, -1e-9);
  }
  return count;
}

/// Mean and worst of one's cost divided by the other's, over problems and seeds.
void print_ratio(const std::vector<Findings>& all, const Compared& compared, const Key& one,
                 const Key& other) {
  double sum = 0, worst = 0;
  std::size_t count = 0, longer = 0;
  for (const Findings& findings : all) {
    for (std::size_t s = 0; s < compared.seeds.size(); ++s) {
      const double ratio = findings.found.at(one)[s].cost / findings.found.at(other)[s].cost;
      sum += ratio;
      worst = std::max(worst, ratio);
      ++count;
      if (ratio > 1.01) ++longer;
    }
  }
  fmt::print("| {} | {} | {:.4f} | {:.4f} | {} of {} |\n", title_of(compared, one),
             title_of(compared, other), sum / static_cast<double>(count), worst, longer, count);
}

}  // namespace

double Findings::mean(const Key& key, double Found::*figure) const {
  double sum = 0;
  for (const Found& one : found.at(key)) sum += one.*figure;
  return sum / static_cast<double>(found.at(key).size());
}

std::string title_of(const Compared& compared, const Key& key) {
  return fmt::format("{}@{}", compared.rows[key.first].name, key.second);
}

void print_head(const Compared& compared) {
  fmt::print("{:40}", "step / best seed");
  for (const Key& key : keys_of(compared)) {
    fmt::print(" {:>{}}", title_of(compared, key), width_of(compared, key));
  }
  fmt::print("\n");
}

void print_problem(const Compared& compared, const Findings& findings) {
  fmt::print("{:40}", findings.problem);
  for (const Key& key : keys_of(compared)) {
    fmt::print(" {:{}.4f}", findings.mean(key, &Found::cost), width_of(compared, key));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

void print_rows(const std::vector<Findings>& all, const Compared& compared) {
  const std::string known =
      compared.best_is_known ? " longer than the best known | within 1% |" : "";
  fmt::print(
      "\n{} problems, seeds {}; +- is half of a 95% interval (Student's t) over problems, of means "
      "over seeds.\n\n"
      "| refiner | budget | evaluations | step / best seed | more than {} |{} processor time |\n"
      "| --- | ---: | ---: | ---: | ---: |{} ---: |\n",
      all.size(), fmt::join(compared.seeds, ", "), compared.rows.front().name, known,
      compared.best_is_known ? " ---: | ---: |" : "");
  for (const Key& key : keys_of(compared)) {
    const Key first = {0, key.second};
    fmt::print(
        "| {} | {} | {:.0f} | {:.4f} | {} |{} {:.2f} s |\n", compared.rows[key.first].name,
        key.second, mean_over(all, key, &Found::evaluations), mean_over(all, key, &Found::cost),
        key == first ? "" : text_of(interval(differences(all, key, first))),
        compared.best_is_known ? gap_text(all, key) : "", mean_over(all, key, &Found::seconds));
  }
  const std::size_t shorter = shorter_than_known(all);
  if (compared.best_is_known && shorter > 0) {
    fmt::print("\n{} searches found a shorter step than the best known: find_best_known improve\n",
               shorter);
  }
}

void print_ratios(const std::vector<Findings>& all, const Compared& compared) {
  fmt::print(
      "\n| step of | / step of | mean | worst | more than 1% longer |\n"
      "| --- | --- | ---: | ---: | ---: |\n");
  for (const std::int64_t budget : compared.budgets) {
    for (std::size_t row = 1; row < compared.rows.size(); ++row) {
      print_ratio(all, compared, {0, budget}, {row, budget});
    }
  }
  const auto [least, most] = std::minmax_element(compared.budgets.begin(), compared.budgets.end());
  if (*least == *most) return;
  for (std::size_t row = 1; row < compared.rows.size(); ++row) {
    print_ratio(all, compared, {0, *least}, {row, *most});
  }
}

}  // namespace agpcs::bench
