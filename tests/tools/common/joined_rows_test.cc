// SPDX-License-Identifier: Apache-2.0
#include "tools/common/joined_rows.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::SizeIs;

/// A device of some kind with two figures; the second has a unit that a range has once.
TableRow device(std::size_t number, const std::string& kind, double samples, double bytes) {
  TableRow row;
  row.name = fmt::format("a/{}", number);
  row.figures = {{samples, fmt::format("{}", samples), ""}, {bytes, fmt::format("{}", bytes), "B"}};
  row.alike = {fmt::format("{} {}", samples, kind), kind};
  return row;
}

std::string text(std::vector<TableRow> rows) {
  std::string text;
  for (const TableRow& row : joined_rows(std::move(rows))) {
    text += row.name + ":";
    for (const std::string& cell : cells_of(row)) text += " " + cell;
    text += '\n';
  }
  return text;
}

TEST(JoinedRows, StayAsTheyAreWhereAScreenShowsAll) {
  std::vector<TableRow> rows;
  for (std::size_t i = 0; i < kMostRows; ++i) rows.push_back(device(i, "gpu", 8, 100));
  EXPECT_THAT(joined_rows(rows), SizeIs(kMostRows));
  rows.push_back(device(kMostRows, "gpu", 8, 100));
  EXPECT_EQ(text(rows), "a/0 .. a/16  x17: 8 100B\n");
}

TEST(JoinedRows, TellApartWhatIsOfAnotherKindOrHasOtherSamples) {
  std::vector<TableRow> rows;  // in turns, as where each host has devices of both kinds
  for (std::size_t i = 0; i < 1024; ++i) {
    rows.push_back(i % 2 == 0 ? device(i, "fast", 16, 200) : device(i, "slow", 8, 100));
  }
  rows[7] = device(7, "slow", 9, 150);
  rows[9] = device(9, "slow", 8, 90);
  EXPECT_EQ(text(rows),
            "a/0 .. a/1022  x512: 16 200B\n"
            "a/1 .. a/1023  x511: 8 90 .. 100B\n"
            "a/7: 9 150B\n");
}

TEST(JoinedRows, AreRangesWhereTooManyDiffer) {
  std::vector<TableRow> rows;
  for (std::size_t i = 0; i < 1024; ++i) {
    rows.push_back(device(i, "gpu", i < 24 ? 9 : 8, 100 + static_cast<double>(i % 50)));
  }
  EXPECT_EQ(text(rows),
            "a/0 .. a/23  x24: 9 100 .. 123B\n"
            "a/24 .. a/1023  x1000: 8 100 .. 149B\n");
}

TEST(JoinedRows, FitAScreenWhereEveryDeviceIsUnlikeTheOthers) {
  std::vector<TableRow> rows;
  for (std::size_t i = 0; i < 1024; ++i) {
    rows.push_back(device(i, i % 3 == 0 ? "fast" : "slow", static_cast<double>(i + 1), 1));
  }
  EXPECT_EQ(text(rows),
            "a/0 .. a/1023  x342: 1 .. 1024 1B\n"
            "a/1 .. a/1022  x682: 2 .. 1023 1B\n");
}

TEST(TableText, ColumnsAreAsWideAsWhatTheyHold) {
  EXPECT_EQ(
      table_text({{"device", 0, true}, {"sent", 6}}, {{"a/0 .. a/9  x10", "1B"}, {"b", "22B"}}),
      "device             sent\n"
      "a/0 .. a/9  x10      1B\n"
      "b                   22B\n");
}

}  // namespace
}  // namespace agpcs
