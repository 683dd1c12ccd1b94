// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/split/split.h"

#include "ir/base/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <variant>

namespace agpcs {

std::vector<UnitRange> elements_of(const Placement& part, std::int64_t units, UnitRange range) {
  AGPCS_CHECK(part.kind == Placement::Kind::kPart, "a {} has no parts", placement_text(part));
  std::vector<UnitRange> elements;
  std::int64_t first = 0;
  for (const std::int64_t per_unit : part.bands) {
    elements.push_back({first + range.begin * per_unit, first + range.end * per_unit});
    first += units * per_unit;
  }
  return elements;
}

Op member_op(const Op& op, const OpSplit& split, std::int64_t units) {
  Op member = op;
  for (const MemberNumber& number : split.numbers) {
    if (number.attribute.empty()) continue;
    Attribute& attribute = member.attributes[number.attribute];
    const std::int64_t value = units * number.per_unit;
    if (number.element == kNone) {
      attribute = value;
    } else {
      std::get<std::vector<std::int64_t>>(attribute).at(static_cast<std::size_t>(number.element)) =
          value;
    }
  }
  return member;
}

std::vector<std::int64_t> member_ints(std::vector<std::int64_t> ints, const OpSplit& split,
                                      int input, std::int64_t units) {
  for (const MemberNumber& number : split.numbers) {
    if (!number.attribute.empty() || number.input != input) continue;
    ints.at(static_cast<std::size_t>(number.element)) = units * number.per_unit;
  }
  return ints;
}

std::optional<Placement> gradient_placement(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::kCopy:
      return Placement{Placement::Kind::kSum};
    case Placement::Kind::kPart:
      return placement;
    case Placement::Kind::kSum:
    case Placement::Kind::kMean:
      return Placement{};
    case Placement::Kind::kMax:
    case Placement::Kind::kMin:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string placement_text(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::kCopy:
      return "copy";
    case Placement::Kind::kSum:
      return "sum";
    case Placement::Kind::kMax:
      return "max";
    case Placement::Kind::kMin:
      return "min";
    case Placement::Kind::kMean:
      return "mean";
    case Placement::Kind::kPart:
      break;
  }
  if (placement.bands == std::vector<std::int64_t>{1}) {
    return fmt::format("axis {}", placement.axis);
  }
  const std::vector<std::int64_t>& bands = placement.bands;
  const bool equal = bands.size() > 1 && std::equal(bands.begin() + 1, bands.end(), bands.begin());
  return equal ? fmt::format("axis {} by {}*{}", placement.axis, bands.size(), bands.front())
               : fmt::format("axis {} by {}", placement.axis, fmt::join(bands, "+"));
}

}  // namespace agpcs
