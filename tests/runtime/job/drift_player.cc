// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/job/drift_player.h"

#include "runtime/job/drift/expectation.h"
#include "tests/runtime/plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace agpcs {
namespace {

std::size_t at(Quantity quantity) { return static_cast<std::size_t>(quantity); }

}  // namespace

double factor_in(const Injected& change, std::int64_t step) {
  if (step < change.from || step >= change.until) return 1;
  if (step >= change.ramp_until) return change.factor;
  const double part = static_cast<double>(step - change.from) /
                      static_cast<double>(change.ramp_until - change.from);
  return 1 + part * (change.factor - 1);
}

Plan drift_plan(const std::vector<int>& stages, double step_seconds,
                const std::vector<QuantitySeconds>& expected) {
  TestPlan spec;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const int ranks = stages[s];
    const std::int64_t all = 12;  // divides into up to 4 shares
    spec.shares.emplace_back(static_cast<std::size_t>(ranks), all / ranks);
    if (s > 0) spec.cuts.push_back({static_cast<int>(s) - 1, static_cast<int>(s), {"a"}});
  }
  Plan plan = make_plan(spec);
  expect_of_ranks(plan, step_seconds, expected);
  return plan;
}

void expect_of_ranks(Plan& plan, double step_seconds,
                     const std::vector<QuantitySeconds>& expected) {
  plan.expect = {{"step", step_seconds, "s"}};
  for (const PlanStage& stage : plan.stages) {
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      const QuantitySeconds& of = expected[static_cast<std::size_t>(stage.ranks[i])];
      plan.expect.push_back({fmt::format("utilization {}", stage.devices[i]),
                             of[at(Quantity::kCompute)] / step_seconds, ""});
      plan.expect.push_back(
          {fmt::format("send {}", stage.devices[i]), of[at(Quantity::kSend)], "s"});
      if (i > 0 || stage.ranks.size() == 1) continue;
      plan.expect.push_back(
          {fmt::format("all-reduce {}", stage.name), of[at(Quantity::kAllReduce)], "s"});
    }
  }
}

RankStatistics shared_by(const Plan& plan, int rank, const QuantitySeconds& seconds,
                         const OwnSeconds& own) {
  const RankExpectation expected = expectation_of(plan, rank);
  RankStatistics statistics;
  for (std::size_t q = 0; q < seconds.size(); ++q) {
    statistics.ratios[q] = log_ratio(expected, static_cast<Quantity>(q), seconds[q]);
  }
  const double computing = seconds[at(Quantity::kCompute)];
  if (own.processor > 0 && computing > 0) {
    statistics.processor = std::min(1.0, own.processor / computing);
    statistics.held = std::min(1 - statistics.processor, own.held / computing);
  }
  return statistics_of(words_of(statistics));
}

std::vector<Verdict> play(const Plan& plan, DriftDetector& detector, const Source& source,
                          const std::vector<Injected>& changes, std::int64_t steps,
                          std::int64_t first_step, const OwnSource& own) {
  const auto ranks = static_cast<std::size_t>(plan.rank_count());
  std::vector<Verdict> verdicts;
  std::vector<QuantitySeconds> sums(ranks);
  std::vector<OwnSeconds> own_sums(ranks);
  std::int64_t summed = 0;
  for (std::int64_t step = first_step; step < steps; ++step) {
    if ((step + 1) % plan.training.statistics_every == 0 && summed > 0) {
      std::vector<RankStatistics> shared(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        const auto mean = [&](double sum) { return sum / static_cast<double>(summed); };
        std::transform(sums[r].begin(), sums[r].end(), sums[r].begin(), mean);
        shared[r] = shared_by(plan, static_cast<int>(r), sums[r],
                              {mean(own_sums[r].processor), mean(own_sums[r].held)});
        sums[r] = {};
        own_sums[r] = {};
      }
      summed = 0;
      auto told = detector.add(step, shared);
      if (!told.empty()) verdicts.push_back({step, std::move(told)});
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      QuantitySeconds measured = source(step, static_cast<int>(r));
      for (const Injected& change : changes) {
        if (change.rank >= 0 && change.rank != static_cast<int>(r)) continue;
        measured[at(change.quantity)] *= factor_in(change, step);
      }
      for (std::size_t q = 0; q < measured.size(); ++q) sums[r][q] += measured[q];
      if (!own) continue;
      const OwnSeconds seconds = own(step, static_cast<int>(r));
      own_sums[r].processor += seconds.processor;
      own_sums[r].held += seconds.held;
    }
    ++summed;
  }
  return verdicts;
}

std::string text(const Plan& plan, const std::vector<Verdict>& verdicts) {
  std::string result;
  for (const Verdict& verdict : verdicts) {
    for (const DriftChange& change : verdict.changes) {
      result += fmt::format("step {}: {}\n", verdict.step, describe(plan, change));
    }
  }
  return result;
}

}  // namespace agpcs
