// SPDX-License-Identifier: Apache-2.0
// How a whole tensor and its gradient lie on the members of a team, and what brings it from one
// placement to another.
#pragma once

#include "ir/graph/graph.h"
#include "ir/graph/split/split.h"
#include "ir/plan/body/body.h"

#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Divides something among the members of a team: of `of` equal pieces, member m has those from
/// ends[m - 1] (or 0) to ends[m]. In lowest terms, so that equal divisions compare equal.
struct Division {
  std::int64_t of = 1;
  std::vector<std::int64_t> ends;

  /// Returns whether each member gets whole ones of that many units.
  bool divides(std::int64_t units) const { return units > 0 && units % of == 0; }
  /// Returns the units of a member. Needs: `divides(units)`.
  UnitRange range(std::size_t member, std::int64_t units) const;
  double part(std::size_t member) const;
  friend bool operator==(const Division&, const Division&) = default;
};

/// Divides `units` among members as nearly as it can in the proportion of `parts`, which are
/// positive; each gets a unit at least. Returns nullopt if there are fewer units than members.
std::optional<Division> divide(std::int64_t units, const std::vector<std::int64_t>& parts);

/// Prints "5/8 + 3/8".
std::string division_text(const Division& division);

/// How a tensor and its gradient lie on the members. A `Placement` counts in units of an operator's
/// split; this one in elements of the tensor, so that those of different operators compare. Where
/// the tensor lies in parts, its gradient does, too; the gradient of a sum is a copy. The gradient
/// of a copy may be either: a sum where the members did different things with it, a copy where
/// they did the same.
struct TeamPlacement {
  Placement::Kind kind = Placement::Kind::kCopy;  ///< kCopy, kPart or kSum
  bool gradient_is_sum = false;                   ///< kCopy
  int axis = 0;                                   ///< kPart
  std::vector<std::int64_t> bands = {};  ///< kPart: elements of each band of the axis, all members'
  int division = kNone;                  ///< kPart: which of the body's divisions
  friend bool operator==(const TeamPlacement&, const TeamPlacement&) = default;
};

/// Returns what a split's placement means for the tensor: a mean is a sum, because a member scales
/// its own tensor. `bands` are the units of each band (one at least). Returns nullopt for an
/// extreme, which no rule differentiates.
std::optional<TeamPlacement> team_placement(const Placement& placement,
                                            const std::vector<std::int64_t>& bands, int division);
/// Returns how the gradient lies.
TeamPlacement gradient_of(const TeamPlacement& placement);
/// Prints "copy", "copy, gradient sum", "sum", "axis 1 as d0", "axis 2 in 512+64+64 as d1".
std::string team_placement_text(const TeamPlacement& placement);

/// Returns what a plan calls it.
Lying lying_of(const TeamPlacement& placement);
/// Returns what makes `to` of `from`.
TeamExchange exchange_between(const TeamPlacement& from, const TeamPlacement& to);
/// Returns what makes the gradient of `from` of the gradient of `to`: the dual of the exchange
/// above.
TeamExchange gradient_exchange(const TeamPlacement& from, const TeamPlacement& to);

}  // namespace agpcs
