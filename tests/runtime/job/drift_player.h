// SPDX-License-Identifier: Apache-2.0
// Plays measured seconds against a DriftDetector: noise, made up or recorded, with changes put in.
#pragma once

#include <agpcs/drift.h>
#include <agpcs/plan.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace agpcs {

/// What a rank measured of a step, by quantity.
using QuantitySeconds = std::array<double, kQuantityCount>;

/// What a rank would measure in a step, without changes.
using Source = std::function<QuantitySeconds(std::int64_t step, int rank)>;

/// Of the seconds of computing in a step: processor time, and the time for which the kernel held
/// the processor back. Processor time 0: not known.
struct OwnSeconds {
  double processor = 0, held = 0;
};
using OwnSource = std::function<OwnSeconds(std::int64_t step, int rank)>;

/// From step `from` to before `until`, `quantity` of `rank` takes `factor` times as long; from
/// `from` to `ramp_until` the factor grows from 1, if that is later. rank -1: every rank.
struct Injected {
  Quantity quantity = Quantity::kCompute;
  int rank = 0;
  double factor = 1;
  std::int64_t from = 0, until = INT64_MAX;
  std::int64_t ramp_until = 0;
};
double factor_in(const Injected& change, std::int64_t step);

struct Verdict {
  std::int64_t step = 0;
  std::vector<DriftChange> changes;
};

/// A plan of one stage a list of ranks in `stages`, with the figures in `expect` that detection
/// needs: each rank's seconds as in `expected`, of a step of `step_seconds`.
Plan drift_plan(const std::vector<int>& stages, double step_seconds,
                const std::vector<QuantitySeconds>& expected);

/// Lets a plan expect a step of `step_seconds`, and of each rank the seconds in `expected`.
void expect_of_ranks(Plan& plan, double step_seconds, const std::vector<QuantitySeconds>& expected);

/// What a rank shares of its mean seconds in a step; what arrives of it at the others.
RankStatistics shared_by(const Plan& plan, int rank, const QuantitySeconds& seconds,
                         const OwnSeconds& own);

/// As a training does it, until before step `steps`: the report of every
/// `plan.training.statistics_every`-th step has what was measured since the last one, of the steps
/// before it. `own`: given, ranks know their processor time.
std::vector<Verdict> play(const Plan& plan, DriftDetector& detector, const Source& source,
                          const std::vector<Injected>& changes, std::int64_t steps,
                          std::int64_t first_step = 0, const OwnSource& own = {});

/// "step 64: host0/1 computes 2.5 times slower than expected since step 50", a line a change.
std::string text(const Plan& plan, const std::vector<Verdict>& verdicts);

}  // namespace agpcs
