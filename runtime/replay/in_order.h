// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace agpcs {

/// Keeps a plan's order: items 0, 1, 2, ... start one after the other, each as soon as it may, in
/// whatever order they become ready. The replayer's streams and `kPlanned` use it.
class InOrder {
 public:
  void reset() { next_ = 0; }
  std::size_t started() const { return next_; }

  /// Starts the next items as long as they may start. `start(i)` may make `may_start` false for
  /// the rest.
  template <typename MayStart, typename Start>
  void advance(std::size_t count, const MayStart& may_start, const Start& start) {
    while (next_ < count && may_start(next_)) start(next_++);
  }

 private:
  std::size_t next_ = 0;
};

}  // namespace agpcs
