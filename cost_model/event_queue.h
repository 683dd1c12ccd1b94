// SPDX-License-Identifier: Apache-2.0
// EventQueue: what happens next in virtual time. A binary heap that keeps its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace agpcs {

/// Events come by time; at one time by `order`, which their maker chooses.
struct StepEvent {
  double time = 0;
  std::uint64_t order = 0;
  int version = 0;
};

class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  const StepEvent& top() const { return heap_.front(); }
  void clear() { heap_.clear(); }

  void push(const StepEvent& event) {
    std::size_t at = heap_.size();
    heap_.push_back(event);
    while (at > 0) {
      const std::size_t parent = (at - 1) / 2;
      if (!before(event, heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }

  void pop() {
    const StepEvent last = heap_.back();
    heap_.pop_back();
    const std::size_t size = heap_.size();
    if (size == 0) return;
    std::size_t at = 0;
    for (std::size_t child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && before(heap_[child + 1], heap_[child])) ++child;
      if (!before(heap_[child], last)) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = last;
  }

 private:
  static bool before(const StepEvent& a, const StepEvent& b) {
    return a.time < b.time || (a.time == b.time && a.order < b.order);
  }

  std::vector<StepEvent> heap_;
};

}  // namespace agpcs
