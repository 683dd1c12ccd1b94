// SPDX-License-Identifier: Apache-2.0
// EventQueue: the next events in virtual time, as a heap with four children a node that keeps its
// memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// An event. Events are ordered by time, which is never negative; events of one time by `order`,
/// which their maker chooses.
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
      const std::size_t least =
          first + kChildren <= size ? least_of_four(first) : least_of(first, size);
      if (!before(heap_[least], last)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = last;
  }

 private:
  static constexpr std::size_t kChildren = 4;

  /// Compares without a branch, as processors could not foresee it. The bits of numbers that are
  /// not negative are ordered like the numbers.
  static bool before(const StepEvent& a, const StepEvent& b) {
    const auto time = std::bit_cast<std::uint64_t>(a.time);
    const auto other = std::bit_cast<std::uint64_t>(b.time);
    const int earlier = time < other ? 1 : 0, together = time == other ? 1 : 0;
    return (earlier | (together & (a.order < b.order ? 1 : 0))) != 0;
  }

  std::size_t least_of_four(std::size_t first) const {
    const std::size_t a = first + (before(heap_[first + 1], heap_[first]) ? 1 : 0);
    const std::size_t b = first + 2 + (before(heap_[first + 3], heap_[first + 2]) ? 1 : 0);
    return before(heap_[b], heap_[a]) ? b : a;
  }

  std::size_t least_of(std::size_t first, std::size_t end) const {
    std::size_t least = first;
    for (std::size_t child = first + 1; child < end; ++child) {
      least = before(heap_[child], heap_[least]) ? child : least;
    }
    return least;
  }

  std::vector<StepEvent> heap_;
};

}  // namespace agpcs
