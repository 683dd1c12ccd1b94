// SPDX-License-Identifier: Apache-2.0
// The parts of operators that members of a team have, as a choice.
#pragma once

#include "ir/graph/graph.h"
#include "ir/team/body.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace agpcs {

/// The parts of members, in proportion; each positive.
using TeamParts = std::vector<std::int64_t>;

/// Returns the parts in lowest terms.
TeamParts in_lowest_terms(TeamParts parts);

/// A body with other parts. Refers to the body.
class OtherParts {
 public:
  /// Cost: O(operators).
  OtherParts(const Graph& graph, const TeamBody& body);

  /// Returns the body in which every operator is divided as before, with parts as near to `parts`
  /// as the units allow that operators with the same division have in common. Returns nullopt if
  /// they have too few units for the members, or if two divisions become one: then some exchanges
  /// would be for nothing. Cost: O(body).
  std::optional<TeamBody> with(const TeamParts& parts) const;

 private:
  const TeamBody& body_;
  std::vector<std::int64_t> units_;  // by division: the most pieces that fit all of its operators
};

/// Finds parts of less cost, from `start` on: moves 1/8, 1/16, 1/32 and then 1/96 of the whole from
/// members of one class to those of another, as long as that helps; members of a class have equal
/// parts. `classes` has the class of each member, from 0 on. Returns `start` itself if nothing is
/// clearly better. Cost: at most `most` tries, each a call of `cost`, and one for the start.
TeamParts climb_parts(const TeamParts& start, const std::vector<int>& classes,
                      const std::function<double(const TeamParts&)>& cost, int most = 40);

}  // namespace agpcs
