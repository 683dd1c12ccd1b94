// SPDX-License-Identifier: Apache-2.0
// Tables for people: rows of which those alike are joined where a screen does not show all, and
// columns as wide as what they hold.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct RowFigure {
  double value = 0;
  std::string text;    ///< the value as it is shown
  std::string suffix;  ///< behind it; of a range once
};

struct TableRow {
  std::string name;
  std::vector<RowFigure> figures;
  /// What rows that are joined have in common: one of these, the first the finest.
  std::vector<std::string> alike;
};

/// A screen has room for so many rows of a table.
inline constexpr std::size_t kMostRows = 16;

/// `rows` if they are at most kMostRows. Else those with the same `alike[i]` are one, with the
/// first i that leaves at most kMostRows, or the last one: "first .. last  xN", where the first of
/// them stood; of figures that differ the range. Needs: as many `alike` in each row, at least one.
std::vector<TableRow> joined_rows(std::vector<TableRow> rows);

struct TableColumn {
  std::string_view head;
  std::size_t least_width = 0;
  bool left = false;  ///< else its cells end where the column ends
};

/// Lines with two blanks between columns: the heads, then `cells` by row.
std::string table_text(const std::vector<TableColumn>& columns,
                       const std::vector<std::vector<std::string>>& cells);

/// The text of each figure, with its suffix.
std::vector<std::string> cells_of(const TableRow& row);

}  // namespace agpcs
