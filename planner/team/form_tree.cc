// SPDX-License-Identifier: Apache-2.0
#include "planner/team/space.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace agpcs {
namespace {

constexpr std::size_t kMostNeeded = 6;

/// What was added last to a set of forms, and of what it was made.
struct Grown {
  double seconds = kNeverSeconds;
  std::size_t added = 0, from = 0;
};

std::vector<int> members_of(FormSet set, int root) {
  std::vector<int> members = {root};
  for (FormSet rest = set & ~form_bit(root); rest != 0; rest &= rest - 1) {
    members.push_back(std::countr_zero(rest));
  }
  return members;
}

/// Adds to the set `have` each form that it lacks, made of the cheapest that it has.
void grow(const TensorForms& tensor, const std::vector<int>& forms, std::size_t have,
          std::vector<Grown>& best) {
  const auto seconds = [&](std::size_t from, std::size_t to) {
    return tensor
        .seconds[static_cast<std::size_t>(forms[from])][static_cast<std::size_t>(forms[to])];
  };
  for (std::size_t added = 1; added < forms.size(); ++added) {
    const std::size_t bit = std::size_t{1} << (added - 1);
    if ((have & bit) != 0) continue;
    std::size_t from = 0;
    for (std::size_t other = 1; other < forms.size(); ++other) {
      const bool there = (have >> (other - 1) & 1) != 0;
      if (there && seconds(other, added) < seconds(from, added)) from = other;
    }
    const double total = best[have].seconds + seconds(from, added);
    if (total < best[have | bit].seconds) best[have | bit] = {total, added, from};
  }
}

}  // namespace

FormTree cheapest_tree(const TensorForms& tensor, int root, FormSet needed) {
  const std::vector<int> forms = members_of(needed, root);
  if (forms.size() == 1) return {};
  if (forms.size() == 2) {
    const double seconds =
        tensor.seconds[static_cast<std::size_t>(root)][static_cast<std::size_t>(forms[1])];
    return {seconds, {{forms[1], root}}};
  }
  if (forms.size() > kMostNeeded + 1) return {kNeverSeconds, {}};
  std::vector<Grown> best(std::size_t{1} << (forms.size() - 1));
  best[0].seconds = 0;
  for (std::size_t have = 0; have + 1 < best.size(); ++have) {
    if (best[have].seconds < kNeverSeconds) grow(tensor, forms, have, best);
  }
  FormTree tree{best.back().seconds, {}};
  if (tree.seconds == kNeverSeconds) return tree;
  for (std::size_t have = best.size() - 1; have != 0;) {
    const Grown& last = best[have];
    tree.made.emplace_back(forms[last.added], forms[last.from]);
    have &= ~(std::size_t{1} << (last.added - 1));
  }
  std::ranges::reverse(tree.made);
  return tree;
}

}  // namespace agpcs
