// SPDX-License-Identifier: Apache-2.0
// TeamSpace: everything that a team may choose from, with numbers for forms of tensors and seconds
// for each choice.
#pragma once

#include "ir/team/body.h"
#include "planner/team/problem.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace agpcs {

inline constexpr double kNeverSeconds = std::numeric_limits<double>::infinity();

/// A set of forms of one tensor, one bit for each.
using FormSet = std::uint64_t;
inline constexpr int kMostForms = 64;
inline constexpr FormSet form_bit(int form) { return FormSet{1} << form; }

/// The forms that a tensor may take.
struct TensorForms {
  std::vector<TeamPlacement> placements = {TeamPlacement()};  ///< the first is a copy
  /// seconds[from][to]: to make one form of another, and the gradients back. kNeverSeconds: no
  /// member could.
  std::vector<std::vector<double>> seconds;
  bool made_here = false;  ///< by an operator of the body
  bool leaves = false;     ///< is read elsewhere, as a copy
  /// Each form begins where it is needed: every member has all of it, and no gradient goes back.
  bool free = false;
  /// What it may begin in, if it is neither free nor made here: a copy, parameters also parts.
  std::vector<int> beginnings;
  /// By form that it begins in: what is counted for holding it; empty: nothing.
  std::vector<double> held;
  double held_in(int form) const { return held.empty() ? 0 : held[static_cast<std::size_t>(form)]; }
};

/// One way to compute an operator.
struct TeamOption {
  int split = kNone, division = kNone;
  std::vector<std::int64_t> bands = {};
  bool own_gradient = false;
  std::vector<int> inputs, outputs;  ///< numbers of forms, parallel to the operator's
  double seconds = 0;                ///< of the slowest member, and of reductions inside
};

struct TeamSpace {
  std::vector<Division> divisions;
  std::vector<std::vector<TeamOption>> options;  ///< by index in the problem's operators
  std::vector<TensorForms> tensors;              ///< by TensorId
};

/// Of the units of all splits, a division that is as even as may be; it is left out where a coarser
/// one that fits those units, too, is nearly as even (slowest member within 5%). So 768 columns
/// may be divided as 12 heads of 64 are.
std::vector<Division> team_divisions(const TeamProblem& problem);

/// Returns all ways in which `problem.ops` can be computed: whole, with gradients alike or summed,
/// and by each split with the divisions that fit, the four most even ones if there are more. An
/// axis is divided in bands where a split of the same extent is: up to four of them.
/// Options that place every tensor as another one does, and take no less, are left out. Cost:
/// O(operators x splits).
TeamSpace team_space(const TeamProblem& problem);

/// How forms of a tensor are made of one another.
struct FormTree {
  double seconds = 0;
  std::vector<std::pair<int, int>> made;  ///< form and the one it is made of, in order
};

/// Returns the cheapest way to have the forms of `needed` of a tensor that begins in `root`, each
/// made of the root or of another one that is needed. Forms may be up to six; beyond, nothing is
/// cheap enough (kNeverSeconds). Cost: O(2^forms x forms^2).
FormTree cheapest_tree(const TensorForms& tensor, int root, FormSet needed);

}  // namespace agpcs
