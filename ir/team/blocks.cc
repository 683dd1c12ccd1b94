// SPDX-License-Identifier: Apache-2.0
#include "ir/team/blocks.h"

#include "ir/base/check.h"

#include <algorithm>

namespace agpcs {
namespace {

using Along = TeamBlock::Along;

/// A band of a part: its elements of the whole axis, and where they begin in the member's tensor.
struct Band {
  UnitRange range;
  std::int64_t at = 0;
};

std::vector<Band> bands_of(const std::vector<Division>& divisions, const TeamPlacement& placement,
                           std::size_t member) {
  std::vector<Band> bands;
  std::int64_t at = 0;
  for (const UnitRange& range : part_elements(divisions, placement, member)) {
    bands.push_back({range, at});
    at += range.size();
  }
  return bands;
}

bool is_part(const TeamPlacement& placement) { return placement.kind == Placement::Kind::kPart; }

/// Adds what two bands of one axis have in common.
void add_overlap(int axis, const Band& from, const Band& to, std::vector<TeamBlock>& blocks) {
  const std::int64_t begin = std::max(from.range.begin, to.range.begin);
  const std::int64_t end = std::min(from.range.end, to.range.end);
  if (begin >= end) return;
  blocks.push_back({{Along{axis, from.at + begin - from.range.begin, to.at + begin - to.range.begin,
                           end - begin}}});
}

}  // namespace

std::vector<UnitRange> part_elements(const std::vector<Division>& divisions,
                                     const TeamPlacement& placement, std::size_t member) {
  AGPCS_CHECK(is_part(placement), "a {} has no parts", team_placement_text(placement));
  const Division& division = divisions[static_cast<std::size_t>(placement.division)];
  std::vector<UnitRange> elements;
  std::int64_t first = 0;
  for (const std::int64_t band : placement.bands) {
    const UnitRange own = division.range(member, band);
    elements.push_back({first + own.begin, first + own.end});
    first += band;
  }
  return elements;
}

std::vector<std::int64_t> member_dims(const std::vector<Division>& divisions,
                                      const TeamPlacement& placement, std::size_t member,
                                      std::vector<std::int64_t> dims) {
  if (!is_part(placement)) return dims;
  std::int64_t& extent = dims[static_cast<std::size_t>(placement.axis)];
  extent = 0;
  for (const UnitRange& range : part_elements(divisions, placement, member)) extent += range.size();
  return dims;
}

std::vector<TeamBlock> shared_blocks(const std::vector<Division>& divisions,
                                     const TeamPlacement& from, std::size_t giver,
                                     const TeamPlacement& to, std::size_t taker) {
  std::vector<TeamBlock> blocks;
  std::vector<Band> given, taken;
  if (is_part(from)) given = bands_of(divisions, from, giver);
  if (is_part(to)) taken = bands_of(divisions, to, taker);
  const auto of_giver = [&](const Band& band) {
    return Along{from.axis, band.at, band.range.begin, band.range.size()};
  };
  const auto of_taker = [&](const Band& band) {
    return Along{to.axis, band.range.begin, band.at, band.range.size()};
  };
  if (!is_part(from) && !is_part(to)) blocks.emplace_back();
  if (!is_part(to)) {
    for (const Band& band : given) blocks.push_back({{of_giver(band)}});
  }
  if (!is_part(from)) {
    for (const Band& band : taken) blocks.push_back({{of_taker(band)}});
  }
  for (const Band& own : given) {
    for (const Band& other : taken) {
      if (from.axis == to.axis) {
        add_overlap(to.axis, own, other, blocks);
      } else {
        blocks.push_back({{of_giver(own), of_taker(other)}});
      }
    }
  }
  return blocks;
}

}  // namespace agpcs
