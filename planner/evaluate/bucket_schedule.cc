// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/bucket_schedule.h"

#include "ir/base/at.h"

#include <cmath>

namespace agpcs {
namespace {

using bucket_schedule::Ends;
using bucket_schedule::Starts;

/// Positions that a look-back may still use, by ascending key, so that the least is at the front.
class Window {
 public:
  explicit Window(std::size_t most) { entries_.reserve(most); }
  void clear() {
    entries_.clear();
    front_ = 0;
  }
  void push(int position, double key) {
    while (entries_.size() > front_ && entries_.back().key > key) entries_.pop_back();
    entries_.push_back({position, key});
  }
  void forget_before(int position) {
    while (front_ < entries_.size() && entries_[front_].position < position) ++front_;
  }
  bool empty() const { return front_ == entries_.size(); }
  int front() const { return entries_[front_].position; }

 private:
  struct Entry {
    int position;
    double key;
  };
  std::vector<Entry> entries_;
  std::size_t front_ = 0;
};

/// Computes one layer in linear time. T does not fall with bytes, so `before` does not fall with i:
/// leaving out the last gradient never makes a grouping end later. Let p be the last position at
/// which the channel is free when gradient i is ready. Earlier positions start at the same time
/// with more bytes, so only p counts of those. A later position j ends at before(j) + a + b (S(i) -
/// S(j)) on a line (a, b), where S is the sum of bytes, so the best j has the least before(j) - b
/// S(j).
class LinearLayer {
 public:
  LinearLayer(std::span<const ReadyGradient> gradients, std::span<const CostLine> lines)
      : gradients_(gradients), lines_(lines), windows_(lines.size(), Window(gradients.size() + 1)) {
    sums_.push_back(0);
    for (const ReadyGradient& gradient : gradients) sums_.push_back(sums_.back() + gradient.bytes);
  }

  void operator()(const Ends& before, Ends& after, Starts& starts) {
    for (Window& window : windows_) window.clear();
    int free = -1;  // p
    int first = 0;  // first gradient in the run of this type
    for (int i = 1; i <= static_cast<int>(gradients_.size()); ++i) {
      const ReadyGradient& gradient = gradients_[at(i - 1)];
      if (i > 1 && gradient.type != gradients_[at(i - 2)].type) first = i - 1;
      add(i - 1, before[at(i - 1)]);
      while (free + 1 < i && before[at(free + 1)] <= gradient.ready) ++free;
      best_ = std::numeric_limits<double>::infinity();
      if (free >= first) consider(free, i, before, starts);
      for (Window& window : windows_) {
        window.forget_before(std::max(first, free + 1));
        if (!window.empty()) consider(window.front(), i, before, starts);
      }
      after[at(i)] = best_;
    }
  }

 private:
  void add(int position, double end) {
    if (std::isinf(end)) return;  // unreachable, or the start, at which the channel is always free
    for (std::size_t l = 0; l < lines_.size(); ++l) {
      windows_[l].push(position,
                       end - lines_[l].per_byte * static_cast<double>(sums_[at(position)]));
    }
  }

  void consider(int j, int i, const Ends& before, Starts& starts) {
    const double end = std::max(before[at(j)], gradients_[at(i - 1)].ready) +
                       seconds_of(lines_, sums_[at(i)] - sums_[at(j)]);
    if (end >= best_) return;
    best_ = end;
    starts[at(i)] = j;
  }

  std::span<const ReadyGradient> gradients_;
  std::span<const CostLine> lines_;
  std::vector<Window> windows_;     // by line
  std::vector<std::int64_t> sums_;  // bytes of the first i gradients
  double best_ = 0;
};

}  // namespace

BucketCounts schedule_buckets(std::span<const ReadyGradient> gradients,
                              std::span<const CostLine> lines) {
  LinearLayer layer(gradients, lines);
  return bucket_schedule::solve(
      gradients.size(),
      [&](const Ends& before, Ends& after, Starts& starts) { layer(before, after, starts); });
}

}  // namespace agpcs
