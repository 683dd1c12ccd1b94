// SPDX-License-Identifier: Apache-2.0
// How often DriftDetector is wrong, and how long it takes to be right, over recorded noise:
//
//     build/release/tests/drift_bench [tests/bench/data/drift_noise.txt]
//     build/release/tests/drift_bench judge RECORDING...
//
// The second form judges it by jobs whose machines were changed (drift_judge.h). Of the first:
//
// Deterministic. The recording (its first lines say how it was made) has, for each exchange, what
// each rank measured: microseconds of computing, all-reduces and sends in a step, in the mean over
// the steps since the exchange before; it is also played with less of its noise. What a plan
// expects is taken to be the median of the whole recording: a profiled plan is a little off, which
// is normal to the detector (agpcs/drift.h).
#include "ir/base/median.h"
#include "tests/bench/runtime/drift_judge.h"
#include "tests/runtime/job/drift_player.h"

#include <agpcs/drift.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

/// What one training measured.
struct Recording {
  std::string name;
  std::vector<int> stages;  ///< ranks of each
  double step_seconds = 0;  ///< median
  int ranks = 0;
  std::vector<std::vector<QuantitySeconds>> exchanges;  ///< by exchange, rank
  std::vector<QuantitySeconds> expected;
  std::int64_t steps() const { return static_cast<std::int64_t>(exchanges.size()) * 5; }
};

void expect_medians(Recording& recording) {
  recording.expected.resize(static_cast<std::size_t>(recording.ranks));
  int first = 0;
  for (const int stage : recording.stages) {
    for (int q = 0; q < kQuantityCount; ++q) {
      for (int r = first; r < first + stage; ++r) {
        std::vector<double> values;
        for (const auto& exchange : recording.exchanges) {
          double value = exchange[static_cast<std::size_t>(r)][static_cast<std::size_t>(q)];
          for (int other = first;
               q == static_cast<int>(Quantity::kAllReduce) && other < first + stage; ++other) {
            value = std::min(
                value, exchange[static_cast<std::size_t>(other)][static_cast<std::size_t>(q)]);
          }
          values.push_back(value);
        }
        recording.expected[static_cast<std::size_t>(r)][static_cast<std::size_t>(q)] =
            median(values);
      }
    }
    first += stage;
  }
}

std::vector<Recording> read(const std::string& path) {
  std::ifstream in(path);
  std::vector<Recording> recordings;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    if (line.empty() || line[0] == '#') continue;
    if (line.rfind("recording ", 0) == 0) {
      Recording& next = recordings.emplace_back();
      std::string keyword;
      words >> keyword >> next.name >> next.step_seconds;
      for (int ranks = 0; words >> ranks;) {
        next.stages.push_back(ranks);
        next.ranks += ranks;
      }
      continue;
    }
    auto& exchange = recordings.back().exchanges.emplace_back();
    for (int r = 0; r < recordings.back().ranks; ++r) {
      QuantitySeconds& measured = exchange.emplace_back();
      for (double& seconds : measured) {
        words >> seconds;
        seconds *= 1e-6;
      }
    }
  }
  for (Recording& recording : recordings) expect_medians(recording);
  return recordings;
}

/// The same with deviations of `part` of what they were, as logarithms: a quieter machine.
Recording quieter(const Recording& recording, double part, const std::string& name) {
  Recording result = recording;
  result.name += name;
  for (auto& exchange : result.exchanges) {
    for (std::size_t r = 0; r < exchange.size(); ++r) {
      for (std::size_t q = 0; q < exchange[r].size(); ++q) {
        const double usual = recording.expected[r][q];
        if (usual > 0) exchange[r][q] = usual * std::pow(exchange[r][q] / usual, part);
      }
    }
  }
  expect_medians(result);
  return result;
}

Plan plan_of(const Recording& recording) {
  return drift_plan(recording.stages, recording.step_seconds, recording.expected);
}

/// The report of every fifth step has what was measured before it.
Source source_of(const Recording& recording) {
  return [&recording](std::int64_t step, int rank) {
    const std::size_t exchange =
        std::min(static_cast<std::size_t>((step + 1) / 5), recording.exchanges.size() - 1);
    return recording.exchanges[exchange][static_cast<std::size_t>(rank)];
  };
}

void show_alarms(const std::vector<Recording>& recordings) {
  std::cout << "changes told where there is none, by threshold (columns) and tolerance\n\n";
  const std::vector<double> thresholds = {0.75, 1, 1.25, 1.5, 2, 3};
  for (const Recording& recording : recordings) {
    std::cout << fmt::format("{}: {} steps of {:.0f} ms\n         ", recording.name,
                             recording.steps(), recording.step_seconds * 1e3);
    for (const double threshold : thresholds) std::cout << fmt::format("{:>7}", threshold);
    std::cout << '\n';
    for (const double tolerance : {1.1, 1.25, 1.35, 1.5}) {
      std::cout << fmt::format("{:>9}", tolerance);
      for (const double threshold : thresholds) {
        const Plan plan = plan_of(recording);
        DriftOptions options;
        options.tolerance = tolerance;
        options.threshold = threshold;
        DriftDetector detector(plan, options);
        std::size_t told = 0;
        for (const Verdict& verdict :
             play(plan, detector, source_of(recording), {}, recording.steps())) {
          told += verdict.changes.size();
        }
        std::cout << fmt::format("{:>7}", told);
      }
      std::cout << '\n';
    }
    const Plan plan = plan_of(recording);
    DriftDetector detector(plan);
    std::cout << text(plan, play(plan, detector, source_of(recording), {}, recording.steps()))
              << '\n';
  }
}

struct Trials {
  std::vector<std::int64_t> delays;  ///< ascending
  int trials = 0, late = 0, wrong = 0;
  std::vector<double> factors;
};

constexpr std::int64_t kBefore = 600, kAfter = 300;

/// Puts the change into many places of the recording, in turns on each rank.
Trials try_change(const Recording& recording, Quantity quantity, double factor) {
  Trials result;
  const Plan plan = plan_of(recording);
  const Source all = source_of(recording);
  for (std::int64_t start = 0; start + kBefore + kAfter < recording.steps(); start += 53) {
    const int rank = static_cast<int>(start / 53 % recording.ranks);
    const bool shared = quantity == Quantity::kAllReduce;
    const Source source = [&](std::int64_t step, int r) { return all(step + start / 5 * 5, r); };
    DriftDetector detector(plan);
    const Injected change{quantity, shared ? -1 : rank, factor, kBefore + start % 5};
    const auto verdicts = play(plan, detector, source, {change}, kBefore + kAfter);
    ++result.trials;
    const auto found = std::find_if(verdicts.begin(), verdicts.end(),
                                    [&](const Verdict& v) { return v.step >= change.from; });
    if (found == verdicts.end()) {
      ++result.late;
      continue;
    }
    const auto named =
        std::find_if(found->changes.begin(), found->changes.end(), [&](const DriftChange& told) {
          return told.quantity == quantity && (shared || told.rank == rank);
        });
    if (named == found->changes.end() || found->changes.size() > 1) ++result.wrong;
    if (named == found->changes.end()) continue;
    result.delays.push_back(found->step + 1 - change.from);
    result.factors.push_back(named->factor);
  }
  std::sort(result.delays.begin(), result.delays.end());
  std::sort(result.factors.begin(), result.factors.end());
  return result;
}

void show_delays(const std::vector<Recording>& recordings) {
  std::cout << "steps until a change is told, with the defaults; put in at many places\n\n";
  for (const Recording& recording : recordings) {
    std::cout << fmt::format("{}\n{:<12}{:>7}{:>8}{:>8}{:>6}{:>6}{:>12}{:>7}{:>7}  {}\n",
                             recording.name, "", "factor", "trials", "median", "90%", "max",
                             "within 20", "never", "wrong", "told factor, 10% to 90%");
    for (int q = 0; q < kQuantityCount; ++q) {
      const auto quantity = static_cast<Quantity>(q);
      if (recording.expected[0][static_cast<std::size_t>(q)] <= 0) continue;
      for (const double factor : {1.5, 2., 2.5, 4., 0.4}) {
        const Trials t = try_change(recording, quantity, factor);
        if (t.delays.empty()) continue;
        const auto at = [&](double part) {
          return static_cast<std::size_t>(part * static_cast<double>(t.delays.size() - 1));
        };
        const auto within =
            std::upper_bound(t.delays.begin(), t.delays.end(), 20) - t.delays.begin();
        std::cout << fmt::format(
            "{:<12}{:>7}{:>8}{:>8}{:>6}{:>6}{:>11.0f}%{:>7}{:>7}  {:.2f} {:.2f}\n",
            name_of(quantity), factor, t.trials, t.delays[at(0.5)], t.delays[at(0.9)],
            t.delays.back(), 100. * static_cast<double>(within) / t.trials, t.late, t.wrong,
            t.factors[at(0.1)], t.factors[at(0.9)]);
      }
    }
    std::cout << '\n';
  }
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  if (argc > 2 && argv[1] == std::string("judge")) {
    for (int i = 2; i < argc; ++i) agpcs::judge_drift(argv[i]);
    return 0;
  }
  const std::string path = argc > 1 ? argv[1] : "tests/bench/data/drift_noise.txt";
  auto recordings = agpcs::read(path);
  if (recordings.empty()) {
    std::cerr << path << ": no recording\n";
    return 1;
  }
  for (std::size_t i = 0, n = recordings.size(); i < n; ++i) {
    recordings.push_back(agpcs::quieter(recordings[i], 0.3, ", a third of the noise"));
    recordings.push_back(agpcs::quieter(recordings[i], 0.1, ", a tenth of the noise"));
  }
  agpcs::show_alarms(recordings);
  agpcs::show_delays(recordings);
  return 0;
}
