// SPDX-License-Identifier: Apache-2.0
// Tables for people. Similar rows are joined if a screen cannot show all of them, and columns are
// as wide as their contents.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

struct RowFigure {
  double value = 0;
  std::string text;    ///< the value as shown
  std::string suffix;  ///< shown behind the text; in a range only once
};

struct TableRow {
  std::string name;
  std::vector<RowFigure> figures;
  /// Keys by which rows may be joined, from the finest to the coarsest.
  std::vector<std::string> alike;
};

/// The number of rows for which a screen has room.
inline constexpr std::size_t kMostRows = 16;

/// Returns `rows` if there are at most kMostRows. Otherwise joins the rows with the same
/// `alike[i]`, for the first i that leaves at most kMostRows, or the last i. A joined row is called
/// "first .. last  xN" and stands where its first row stood; figures that differ become a range.
/// Needs: all rows have the same number of keys in `alike`, at least one.
std::vector<TableRow> joined_rows(std::vector<TableRow> rows);

struct TableColumn {
  std::string_view head;
  std::size_t least_width = 0;
  bool left = false;  ///< cells are aligned left, otherwise right
};

/// Returns lines with two blanks between columns: the heads, then `cells` by row.
std::string table_text(const std::vector<TableColumn>& columns,
                       const std::vector<std::vector<std::string>>& cells);

/// Returns the text of each figure, with its suffix.
std::vector<std::string> cells_of(const TableRow& row);

}  // namespace agpcs
