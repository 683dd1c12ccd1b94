// SPDX-License-Identifier: Apache-2.0
// Chooses which gradients are reduced together, for one channel that carries one all-reduce at a
// time in backward order. An all-reduce starts when its last gradient is ready and the channel is
// free.
//
// It uses exact dynamic programming. Let f(i) be the earliest time at which the channel has carried
// the first i gradients, r(i) the time at which gradient i is ready, and T the seconds of an
// all-reduce:
//   f(0) = -infinity,  f(i) = min over j < i of max(f(j), r(i)) + T(bytes of gradients j+1..i).
// This is exact, since a grouping never ends earlier when a prefix of it ends later. See
// docs/design/grouping.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace agpcs {

/// Gradients come in backward order: `ready` never falls.
struct ReadyGradient {
  double ready = 0;  ///< seconds, from any zero
  std::int64_t bytes = 0;
  int type = 0;  ///< only equal types share a bucket
};

/// The seconds of an all-reduce as a line: seconds + per_byte x bytes, neither negative.
struct CostLine {
  double seconds = 0, per_byte = 0;
  double of(std::int64_t bytes) const { return seconds + per_byte * static_cast<double>(bytes); }
};

/// Returns the least of `lines`. Needs: there is at least one.
inline double seconds_of(std::span<const CostLine> lines, std::int64_t bytes) {
  double least = std::numeric_limits<double>::infinity();
  for (const CostLine& line : lines) least = std::min(least, line.of(bytes));
  return least;
}

/// The number of gradients in each bucket, in order.
using BucketCounts = std::vector<int>;

/// Returns the grouping whose last all-reduce ends first, and among those one with the fewest
/// buckets. It looks for the fewest among groupings of up to 64 buckets; beyond, it returns what
/// the recursion finds. If T is one line, the fewest buckets also keep the channel busy for the
/// shortest time. An all-reduce takes the least of `lines`, that is, it uses the best algorithm for
/// its size. Cost: O(gradients x lines x buckets), because the look-back ends where the channel is
/// free before the gradient is ready, and a sliding window keeps the minimum of what lies between.
BucketCounts schedule_buckets(std::span<const ReadyGradient> gradients,
                              std::span<const CostLine> lines);

/// Returns when the last all-reduce ends. `seconds(bytes)`: the seconds of an all-reduce.
template <typename Seconds>
double end_of_buckets(std::span<const ReadyGradient> gradients, const BucketCounts& counts,
                      const Seconds& seconds) {
  double end = -std::numeric_limits<double>::infinity();
  std::size_t next = 0;
  for (const int count : counts) {
    std::int64_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += gradients[next++].bytes;
    end = std::max(end, gradients[next - 1].ready) + seconds(bytes);
  }
  return end;
}

namespace bucket_schedule {

inline constexpr int kMostLayers = 64;

/// `before[i]`: the earliest end of the first i gradients in the all-reduces so far.
using Ends = std::vector<double>;
using Starts = std::vector<int>;  // by i: the first gradient of its last bucket

/// Runs `layer(before, after, starts)`, which adds one bucket. The first run has after = before, so
/// it uses any number of buckets. The further runs add one bucket at a time until the end is as
/// early.
template <typename Layer>
BucketCounts solve(std::size_t gradients, const Layer& layer) {
  if (gradients == 0) return {};
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto count_back = [&](const auto& start_of) {
    BucketCounts counts;
    for (int end = static_cast<int>(gradients), bucket = 0; end > 0; ++bucket) {
      const int start = start_of(bucket, end);
      counts.push_back(end - start);
      end = start;
    }
    std::reverse(counts.begin(), counts.end());
    return counts;
  };
  Ends ends(gradients + 1, kNever);
  ends[0] = -kNever;
  Starts starts(gradients + 1);
  layer(ends, ends, starts);
  const double earliest = ends[gradients];
  const BucketCounts any =
      count_back([&](int, int end) { return starts[static_cast<std::size_t>(end)]; });
  const double enough = earliest + 1e-12 * std::abs(earliest);
  Ends before(gradients + 1, kNever), after(gradients + 1, kNever);
  before[0] = after[0] = -kNever;
  std::vector<Starts> layers;
  while (layers.size() + 1 < std::min<std::size_t>(any.size(), kMostLayers + 1)) {
    layers.emplace_back(gradients + 1);
    layer(before, after, layers.back());
    if (after[gradients] <= enough) {
      return count_back([&](int bucket, int end) {
        return layers[layers.size() - 1 - static_cast<std::size_t>(bucket)]
                     [static_cast<std::size_t>(end)];
      });
    }
    std::swap(before, after);
  }
  return any;
}

}  // namespace bucket_schedule

/// Does the same as `schedule_buckets` for any T, given as `seconds(bytes)`. Cost: O(gradients^2 x
/// buckets).
template <typename Seconds>
BucketCounts schedule_buckets_of(std::span<const ReadyGradient> gradients, const Seconds& seconds) {
  using bucket_schedule::Ends;
  using bucket_schedule::Starts;
  const auto layer = [&](const Ends& before, Ends& after, Starts& starts) {
    for (std::size_t i = 1; i <= gradients.size(); ++i) {
      std::int64_t bytes = 0;
      double best = std::numeric_limits<double>::infinity();
      for (std::size_t j = i; j-- > 0 && gradients[j].type == gradients[i - 1].type;) {
        bytes += gradients[j].bytes;
        const double end = std::max(before[j], gradients[i - 1].ready) + seconds(bytes);
        if (end > best || end == std::numeric_limits<double>::infinity()) continue;
        best = end;
        starts[i] = static_cast<int>(j);
      }
      after[i] = best;
    }
  };
  return bucket_schedule::solve(gradients.size(), layer);
}

}  // namespace agpcs
