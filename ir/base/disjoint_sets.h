// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace agpcs {

/// A partition of 0, 1, ..., count - 1 into disjoint sets, which can be joined but never split. The
/// least member of a set names it. `Id` is an integer type.
template <typename Id = int>
class DisjointSets {
 public:
  explicit DisjointSets(std::size_t count) : parent_(count) {
    std::iota(parent_.begin(), parent_.end(), Id{0});
  }
  Id find(Id id) {
    while (parent(id) != id) id = parent(id) = parent(parent(id));
    return id;
  }
  /// Joins the sets of `a` and `b`. Returns false when they already were one set.
  bool join(Id a, Id b) {
    a = find(a);
    b = find(b);
    parent(std::max(a, b)) = std::min(a, b);
    return a != b;
  }

 private:
  Id& parent(Id id) { return parent_[static_cast<std::size_t>(id)]; }

  std::vector<Id> parent_;
};

}  // namespace agpcs
