// SPDX-License-Identifier: Apache-2.0
// How the devices of a team can divide one operator: what each needs of its inputs, what each has
// of its outputs, and what its own operator says.
#pragma once

#include "ir/graph/graph.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// How a tensor lies on the members of a team. DTensor's words are in parentheses.
struct Placement {
  enum class Kind : std::uint8_t {
    kCopy,  ///< each member has all of it (Replicate)
    kPart,  ///< each member has a part of one axis (Shard)
    kSum,   ///< it is the sum of the members' tensors (Partial, sum)
    kMax,   ///< it is their maximum, element by element (Partial, max)
    kMin,   ///< it is their minimum (Partial, min)
    kMean,  ///< it is their mean, each member's tensor weighted by its units (Partial, avg)
  };
  Kind kind = Kind::kCopy;
  int axis = 0;  ///< kPart
  /// kPart: the axis is one band after another, and each member has a part of every band. The
  /// numbers are elements per unit of the split. One band {64} divides heads of 64 elements;
  /// {256, 64, 64} divides queries, keys and values that lie behind one another.
  std::vector<std::int64_t> bands = {};
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// A number that a member's operator has in place of the whole one's: an attribute, or an element
/// of an attribute or of an input of integers.
struct MemberNumber {
  std::string attribute;  ///< empty: `input` has it
  int input = kNone;
  int element = kNone;        ///< kNone: the attribute is a single number
  std::int64_t per_unit = 1;  ///< the number is the member's units times this
};

/// One way to divide an operator. `units` equal units, such as heads, columns or channels, go to
/// the members in order; each member has at least one, and they need not have equally many.
struct OpSplit {
  std::string name;  ///< what is divided: "columns", "heads", "axis 2"; "sum": nothing is
  /// The largest degree: no team has more members. 0: any number, because nothing is divided and
  /// each member computes on its own summands.
  std::int64_t units = 0;
  std::vector<Placement> inputs, outputs;  ///< parallel to the operator's
  std::vector<MemberNumber> numbers;
  /// The input whose indices point into what is divided (unit = element). A member subtracts its
  /// first unit from them; those that then lie outside of its part select nothing and leave 0.
  int indices = kNone;
  /// Reductions over the members while they compute, in order; empty: they compute alone. A cross
  /// entropy divided by vocabulary reduces the maximum of the scores of each row, then the sums of
  /// their exponentials and of the score of the label.
  std::vector<Placement::Kind> inside = {};
};

/// Returns the splits of an operator, in the order of the table; none if it cannot be divided. An
/// axis whose extent grows with the samples is never divided: replicas share samples, and the
/// members of a team compute the same ones. Needs: a graph that verifies. Cost: O(rank of the
/// operator's tensors).
std::vector<OpSplit> splits_of(const Graph& graph, OpId op);

/// Returns why no operator of this type is ever divided; empty if some are.
std::string_view why_undivided(std::string_view domain, std::string_view type);

/// A row of the table of splits: the names of the splits that an operator of a type may have, or
/// why it has none. "axes" stands for "axis 0", "axis 1" and so on.
struct SplitRow {
  std::string_view type;
  std::vector<std::string_view> names;
  std::string_view why_none;
};
std::vector<SplitRow> split_table();  ///< sorted by type

/// A range of units, or of elements of an axis.
struct UnitRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const UnitRange&, const UnitRange&) = default;
};

/// Returns the elements of a part's axis that the member with `range` of `units` has, a range for
/// each band. Needs: a part.
std::vector<UnitRange> elements_of(const Placement& part, std::int64_t units, UnitRange range);

/// Returns the operator that a member with `units` units computes: `op` with its numbers.
Op member_op(const Op& op, const OpSplit& split, std::int64_t units);
/// Returns an input of integers as that member has it.
std::vector<std::int64_t> member_ints(std::vector<std::int64_t> ints, const OpSplit& split,
                                      int input, std::int64_t units);

/// Returns how the gradient of a tensor lies if the tensor lies as `placement`: parts as parts, of
/// a copy a sum, of a sum (or mean) a copy. Returns nullopt for an extreme, whose gradient goes to
/// the member that has it.
std::optional<Placement> gradient_placement(const Placement& placement);

/// Prints "copy", "sum", "axis 1", "axis 1 by 64" with the elements for each unit, "axis 2 by
/// 4+1+1" with those in each of several bands, "axis 2 by 3*64" where these are equally many.
std::string placement_text(const Placement& placement);

}  // namespace agpcs
