// SPDX-License-Identifier: Apache-2.0
// Proposal: the better plan that rank 0 has found, until all ranks have it.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/replanner.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace agpcs {

class Proposal {
 public:
  /// Exchanges for which a plan waits at most: while a device seems about to change, and after
  /// links have come back.
  static constexpr int kMostWaits = 6, kMostWaitsAfterReturn = 4;

  const Replan& make(Replan replan) {
    replan_ = std::move(replan);
    text_ = print_plan(replan_->plan);
    return *replan_;
  }
  /// Drops the plan, if there is one; the next one may wait as long again.
  void drop() {
    replan_.reset();
    text_.clear();
    waits_ = 0;
  }
  bool made() const { return replan_.has_value(); }
  const std::string& text() const { return text_; }

  /// Returns the bytes of the text that rank 0 announces in this exchange; 0: there is none, or it
  /// waits. Changes often come together, and a plan for the first of them would soon be left: it
  /// waits while a device may be about to change (`suspected`), and for a while where links have
  /// come back (`returned`), as devices that became slow with them may.
  std::size_t announced(bool suspected, bool returned) {
    const int most = suspected ? kMostWaits : returned ? kMostWaitsAfterReturn : 0;
    if (text_.empty() || waits_ >= most) return text_.size();
    ++waits_;
    return 0;
  }

 private:
  std::optional<Replan> replan_;
  std::string text_;
  int waits_ = 0;
};

}  // namespace agpcs
