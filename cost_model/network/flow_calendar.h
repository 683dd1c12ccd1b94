// SPDX-License-Identifier: Apache-2.0
// FlowCalendar: when each flow in progress ends. When rates change, it moves the ends in place, so
// that it holds no outdated ends.
#pragma once

#include "cost_model/network/network.h"

#include <cstddef>
#include <vector>

namespace agpcs {

/// A heap by time, then slot, that knows the place of each slot.
class FlowCalendar {
 public:
  bool empty() const { return heap_.empty(); }
  const FlowEnd& top() const { return heap_.front(); }
  void clear() {
    for (const FlowEnd& end : heap_) place_[static_cast<std::size_t>(end.slot)] = kAbsent;
    heap_.clear();
  }

  /// Adds or moves the end of the flow in its slot.
  void set(const FlowEnd& end) {
    const auto slot = static_cast<std::size_t>(end.slot);
    if (place_.size() <= slot) place_.resize(slot + 1, kAbsent);
    std::size_t at = place_[slot];
    if (at == kAbsent) {
      at = heap_.size();
      heap_.push_back(end);
    }
    const bool earlier = at > 0 && before(end, heap_[(at - 1) / 2]);
    earlier ? rise(at, end) : sink(at, end);
  }

  void pop() {
    place_[static_cast<std::size_t>(heap_.front().slot)] = kAbsent;
    const FlowEnd last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(0, last);
  }

 private:
  static constexpr std::size_t kAbsent = static_cast<std::size_t>(-1);

  static bool before(const FlowEnd& a, const FlowEnd& b) {
    return a.time < b.time || (a.time == b.time && a.slot < b.slot);
  }
  void put(std::size_t at, const FlowEnd& end) {
    heap_[at] = end;
    place_[static_cast<std::size_t>(end.slot)] = at;
  }
  void rise(std::size_t at, const FlowEnd& end) {
    while (at > 0 && before(end, heap_[(at - 1) / 2])) {
      put(at, heap_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    put(at, end);
  }
  void sink(std::size_t at, const FlowEnd& end) {
    for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
      if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
      if (!before(heap_[child], end)) break;
      put(at, heap_[child]);
      at = child;
    }
    put(at, end);
  }

  std::vector<FlowEnd> heap_;
  std::vector<std::size_t> place_;  // by slot: index in heap_, or kAbsent
};

}  // namespace agpcs
