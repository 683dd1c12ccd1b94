// SPDX-License-Identifier: Apache-2.0
// SwitchBudget: says how often a job may still move to another plan.
#pragma once

#include <agpcs/trainer.h>

#include <cstdint>
#include <deque>

namespace agpcs {

/// Allows at most `most_switches` in any `window_seconds`. Times are in nanoseconds and
/// never decrease.
class SwitchBudget {
 public:
  explicit SwitchBudget(const SwitchOptions& options) : options_(options) {}
  bool allows(std::int64_t now) {
    while (!spent_.empty() &&
           static_cast<double>(now - spent_.front()) * 1e-9 >= options_.window_seconds) {
      spent_.pop_front();
    }
    return static_cast<std::int64_t>(spent_.size()) < options_.most_switches;
  }
  void spend(std::int64_t now) { spent_.push_back(now); }

 private:
  const SwitchOptions options_;
  std::deque<std::int64_t> spent_;
};

}  // namespace agpcs
