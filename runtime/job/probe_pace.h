// SPDX-License-Identifier: Apache-2.0
// ProbePace: when the links of a job are measured again.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace agpcs {

/// While the hardware differs from the job's start, all links are probed now and then, because a
/// plan may hardly use one that recovers, and the slow ones get a glance more often. Times are of
/// `steady_nanoseconds`.
class ProbePace {
 public:
  void probed(std::int64_t begin, std::int64_t end) { probe_ = {begin, end}; }
  bool probe_due(std::int64_t now) const {
    return probe_.seconds_ago(now) > std::max(kProbeEverySeconds, probe_.seconds() / kProbePart);
  }

  void glanced(std::int64_t begin, std::int64_t end) { glance_ = {begin, end}; }
  /// Each glance in vain doubles the time to the next one.
  bool glance_due(std::int64_t now, int in_vain) const {
    const int rarer = 1 << std::min(in_vain, kMostGlancesInVain);
    return glance_.seconds_ago(now) > rarer * glance_.seconds() / kGlancePart;
  }

  /// Says after a probe whether another one has to confirm it, and how long a step should take.
  /// That one comes a moment later, because other work on a machine comes in bursts.
  void confirm(bool confirming, double step_seconds) {
    const double steps = std::ceil(kConfirmAfterSeconds / std::max(step_seconds, 1e-6));
    confirm_in_ = confirming ? static_cast<int>(steps) : 0;
  }
  /// Called once before each step. Returns whether the confirming probe is due.
  bool confirms() { return confirm_in_ > 0 && --confirm_in_ == 0; }

 private:
  // Probes take at most kProbePart of the time, and glances at most kGlancePart.
  static constexpr double kProbeEverySeconds = 30, kProbePart = 0.01, kGlancePart = 0.02;
  static constexpr int kMostGlancesInVain = 8;  // then their interval stops growing
  // The moment, if steps take as long as expected; at the next exchange the links are looked at.
  static constexpr double kConfirmAfterSeconds = 0.4;

  struct Span {
    std::int64_t begin = 0, end = 0;
    double seconds() const { return static_cast<double>(end - begin) * 1e-9; }
    double seconds_ago(std::int64_t now) const { return static_cast<double>(now - end) * 1e-9; }
  };

  Span probe_, glance_;
  int confirm_in_ = 0;  // steps until the confirming probe; 0: there is none
};

}  // namespace agpcs
