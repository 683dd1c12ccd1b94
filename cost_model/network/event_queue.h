// SPDX-License-Identifier: Apache-2.0
// EventQueue: the next events in virtual time, as a heap with four children a node that keeps its
// memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace agpcs {

/// An event. Events are ordered by time; events of one time by `order`, which their maker chooses.
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
      const std::size_t parent = (at - 1) / kChildren;
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
    for (std::size_t first = 1; first < size; first = kChildren * at + 1) {
      const std::size_t end = std::min(first + kChildren, size);
      std::size_t least = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        least = before(heap_[child], heap_[least]) ? child : least;
      }
      if (!before(heap_[least], last)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = last;
  }

 private:
  static constexpr std::size_t kChildren = 4;

  static bool before(const StepEvent& a, const StepEvent& b) {
    return a.time < b.time || (a.time == b.time && a.order < b.order);
  }

  std::vector<StepEvent> heap_;
};

}  // namespace agpcs
