// SPDX-License-Identifier: Apache-2.0
#include "ir/team/blocks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {
namespace {

using Kind = Placement::Kind;

constexpr std::int64_t kRows = 12, kColumns = 16;

/// Three members, and two.
const std::vector<Division> kThree = {{12, {5, 9, 12}}, {4, {2, 3, 4}}};

TeamPlacement part(int axis, std::vector<std::int64_t> bands, int division) {
  return {Kind::kPart, false, axis, std::move(bands), division};
}

/// A matrix with names for its elements; what a member has of it.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<int> elements;
  int& at(std::int64_t row, std::int64_t column) {
    return elements[static_cast<std::size_t>(row * columns + column)];
  }
};

Matrix empty(std::int64_t rows, std::int64_t columns) {
  return {rows, columns, std::vector<int>(static_cast<std::size_t>(rows * columns), -1)};
}

/// Says by the ranges alone what a member has.
Matrix held_by(const TeamPlacement& placement, std::size_t member) {
  std::vector<std::int64_t> of[2];
  for (int axis = 0; axis < 2; ++axis) {
    const bool divided = placement.kind == Kind::kPart && placement.axis == axis;
    std::vector<UnitRange> ranges = {{0, axis == 0 ? kRows : kColumns}};
    if (divided) ranges = part_elements(kThree, placement, member);
    for (const UnitRange& range : ranges) {
      for (std::int64_t i = range.begin; i < range.end; ++i) of[axis].push_back(i);
    }
  }
  Matrix own =
      empty(static_cast<std::int64_t>(of[0].size()), static_cast<std::int64_t>(of[1].size()));
  for (std::int64_t row = 0; row < own.rows; ++row) {
    for (std::int64_t column = 0; column < own.columns; ++column) {
      own.at(row, column) = static_cast<int>(of[0][static_cast<std::size_t>(row)] * kColumns +
                                             of[1][static_cast<std::size_t>(column)]);
    }
  }
  return own;
}

/// Copies a block, and says how many of its elements were there before.
int copy(const TeamBlock& block, Matrix& giver, Matrix& taker) {
  std::int64_t from[2] = {0, 0}, to[2] = {0, 0}, size[2] = {taker.rows, taker.columns};
  for (const TeamBlock::Along& along : block.along) {
    from[along.axis] = along.giver;
    to[along.axis] = along.taker;
    size[along.axis] = along.size;
  }
  int again = 0;
  for (std::int64_t row = 0; row < size[0]; ++row) {
    for (std::int64_t column = 0; column < size[1]; ++column) {
      int& element = taker.at(to[0] + row, to[1] + column);
      again += element == -1 ? 0 : 1;
      element = giver.at(from[0] + row, from[1] + column);
    }
  }
  return again;
}

TEST(TeamBlocks, BringEveryElementOnceToItsPlace) {
  const std::vector<TeamPlacement> placements = {
      {Kind::kCopy},    {Kind::kSum},          part(0, {12}, 0),      part(0, {12}, 1),
      part(1, {16}, 1), part(1, {8, 4, 4}, 1), part(0, {4, 4, 4}, 1), part(1, {4, 12}, 1)};
  for (const TeamPlacement& from : placements) {
    for (const TeamPlacement& to : placements) {
      for (std::size_t taker = 0; taker < 3; ++taker) {
        SCOPED_TRACE(team_placement_text(from) + " to " + team_placement_text(to));
        Matrix want = held_by(to, taker), got = empty(want.rows, want.columns);
        int again = 0;
        const std::size_t givers = from.kind == Kind::kPart ? 3 : 1;
        for (std::size_t giver = 0; giver < givers; ++giver) {
          Matrix own = held_by(from, giver);
          for (const TeamBlock& block : shared_blocks(kThree, from, giver, to, taker)) {
            again += copy(block, own, got);
          }
        }
        EXPECT_EQ(got.elements, want.elements);
        EXPECT_EQ(again, 0);
      }
    }
  }
}

TEST(TeamBlocks, DimsAreThoseOfThePart) {
  using Dims = std::vector<std::int64_t>;
  EXPECT_EQ(member_dims(kThree, {Kind::kSum}, 1, {12, 16}), (Dims{12, 16}));
  EXPECT_EQ(member_dims(kThree, part(0, {12}, 0), 1, {12, 16}), (Dims{4, 16}));
  EXPECT_EQ(member_dims(kThree, part(1, {8, 4, 4}, 1), 0, {12, 16}), (Dims{12, 8}));
}

}  // namespace
}  // namespace agpcs
