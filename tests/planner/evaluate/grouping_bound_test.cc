// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/planning/grouping_bound.h"

#include "ir/base/rng.h"
#include "tests/planner/evaluate/random_strategies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace agpcs::testing {
namespace {

struct Set {
  double ready = 0;
  std::int64_t bytes = 0;
};

/// Over all partitions of `gradients` into sets, and all orders of the sets.
class AllGroupings {
 public:
  AllGroupings(const std::vector<ReadyGradient>& gradients, const CostCurve& curve)
      : gradients_(gradients), curve_(curve) {
    divide(0);
  }
  double best() const { return best_; }
  int tried() const { return tried_; }

 private:
  void divide(std::size_t next) {
    if (next == gradients_.size()) return order();
    const ReadyGradient& gradient = gradients_[next];
    for (std::size_t s = 0; s < sets_.size(); ++s) {
      const Set before = sets_[s];
      sets_[s] = {std::max(before.ready, gradient.ready), before.bytes + gradient.bytes};
      divide(next + 1);
      sets_[s] = before;
    }
    sets_.push_back({gradient.ready, gradient.bytes});
    divide(next + 1);
    sets_.pop_back();
  }

  void order() {
    std::vector<std::size_t> order;
    for (std::size_t s = 0; s < sets_.size(); ++s) order.push_back(s);
    do {
      double end = 0;
      for (const std::size_t s : order) {
        end = std::max(end, sets_[s].ready) + curve_(sets_[s].bytes);
      }
      best_ = std::min(best_, end);
      ++tried_;
    } while (std::next_permutation(order.begin(), order.end()));
  }

  const std::vector<ReadyGradient>& gradients_;
  const CostCurve& curve_;
  std::vector<Set> sets_;
  double best_ = std::numeric_limits<double>::infinity();
  int tried_ = 0;
};

/// May fall, jump, and bend either way.
CostCurve random_curve(Rng& rng) {
  CostCurve curve;
  std::int64_t bytes = 0;
  double seconds = between(rng, 0, 20);
  for (int i = between(rng, 2, 8); i > 0; --i) {
    curve.points.push_back({bytes, seconds});
    bytes += between(rng, 1, 30);
    seconds = std::max(0.0, seconds + between(rng, -5, 30));
  }
  if (curve.points.back().seconds < curve.points[curve.points.size() - 2].seconds) {
    curve.points.back().seconds = curve.points[curve.points.size() - 2].seconds;
  }
  return curve;
}

std::vector<ReadyGradient> random_gradients(Rng& rng, int count) {
  std::vector<ReadyGradient> gradients;
  double ready = 0;
  for (int i = 0; i < count; ++i) {
    ready += between(rng, 0, 25);
    gradients.push_back({ready, between(rng, 1, 20), 0});
  }
  return gradients;
}

TEST(GroupingBound, NoSetOfAllReducesInAnyOrderEndsEarlier) {
  Rng rng(1);
  int tight = 0;
  for (int i = 0; i < 400 && !HasFailure(); ++i) {
    const auto gradients = random_gradients(rng, between(rng, 1, 6));
    const CostCurve curve = random_curve(rng);
    const AllGroupings all(gradients, curve);
    const double bound = earliest_end(gradients, curve);
    EXPECT_LE(bound, all.best() + 1e-9) << i;
    const BucketCounts planned = schedule_buckets_of(gradients, curve);
    EXPECT_GE(end_of_buckets(gradients, planned, curve), all.best() - 1e-9) << i;
    tight += bound > all.best() - 1e-9 ? 1 : 0;
  }
  EXPECT_GT(tight, 40);  // a bound that says little would pass above
}

TEST(GroupingBound, TriesEveryOrderedPartition) {
  Rng rng(2);
  const CostCurve curve = random_curve(rng);
  EXPECT_EQ(AllGroupings(random_gradients(rng, 4), curve).tried(), 75);  // OEIS A000670
  EXPECT_EQ(AllGroupings(random_gradients(rng, 6), curve).tried(), 4683);
}

TEST(GroupingBound, IsReachedOnAStraightLine) {
  const CostCurve line = {{{0, 2}, {10, 12}}};
  EXPECT_DOUBLE_EQ(earliest_end(std::vector<ReadyGradient>{{0, 5, 0}}, line), 7);
  EXPECT_DOUBLE_EQ(earliest_end(std::vector<ReadyGradient>{{0, 5, 0}, {3, 1, 0}}, line), 8);
  EXPECT_DOUBLE_EQ(earliest_end(std::vector<ReadyGradient>{{0, 5, 0}, {100, 1, 0}}, line), 103);
}

}  // namespace
}  // namespace agpcs::testing
