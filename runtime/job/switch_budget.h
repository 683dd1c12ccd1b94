// SPDX-License-Identifier: Apache-2.0
// Whether a job moves to another plan: how often it still may, and whether the move pays.
#pragma once

#include <agpcs/trainer.h>

#include <cstdint>
#include <deque>
#include <string>

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

/// Returns why a move to a plan, which takes `move_seconds`, does not pay, or an empty string.
std::string why_not_worth_it(const Replan& replan, const SwitchOptions& options,
                             double move_seconds);

}  // namespace agpcs
