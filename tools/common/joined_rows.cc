// SPDX-License-Identifier: Apache-2.0
#include "tools/common/joined_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace agpcs {
namespace {

/// Returns groups of rows, by index, with the same `alike[level]`, in the order of their first
/// rows.
std::vector<std::vector<std::size_t>> groups_of(const std::vector<TableRow>& rows,
                                                std::size_t level) {
  std::map<std::string_view, std::size_t> known;
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [entry, added] = known.emplace(rows[i].alike[level], groups.size());
    if (added) groups.emplace_back();
    groups[entry->second].push_back(i);
  }
  return groups;
}

RowFigure range_of(const std::vector<TableRow>& rows, const std::vector<std::size_t>& group,
                   std::size_t column) {
  const RowFigure* least = &rows[group.front()].figures[column];
  const RowFigure* most = least;
  for (const std::size_t i : group) {
    const RowFigure& figure = rows[i].figures[column];
    if (figure.value < least->value) least = &figure;
    if (figure.value > most->value) most = &figure;
  }
  if (least->text == most->text) return *most;
  return {most->value, fmt::format("{} .. {}", least->text, most->text), most->suffix};
}

TableRow joined(const std::vector<TableRow>& rows, const std::vector<std::size_t>& group) {
  TableRow row = rows[group.front()];
  if (group.size() == 1) return row;
  row.name = fmt::format("{} .. {}  x{}", row.name, rows[group.back()].name, group.size());
  for (std::size_t c = 0; c < row.figures.size(); ++c) row.figures[c] = range_of(rows, group, c);
  return row;
}

std::string line_of(const std::vector<TableColumn>& columns, const std::vector<std::size_t>& widths,
                    const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    line += c == 0 ? "" : "  ";
    line += columns[c].left ? fmt::format("{:<{}}", cells[c], widths[c])
                            : fmt::format("{:>{}}", cells[c], widths[c]);
  }
  return line + "\n";
}

}  // namespace

std::vector<TableRow> joined_rows(std::vector<TableRow> rows) {
  if (rows.size() <= kMostRows) return rows;
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t level = 0; level < rows.front().alike.size(); ++level) {
    groups = groups_of(rows, level);
    if (groups.size() <= kMostRows) break;
  }
  std::vector<TableRow> result;
  result.reserve(groups.size());
  for (const std::vector<std::size_t>& group : groups) result.push_back(joined(rows, group));
  return result;
}

std::string table_text(const std::vector<TableColumn>& columns,
                       const std::vector<std::vector<std::string>>& cells) {
  std::vector<std::string> heads;
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    heads.emplace_back(columns[c].head);
    widths.push_back(std::max(columns[c].least_width, columns[c].head.size()));
    for (const std::vector<std::string>& row : cells) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::string text = line_of(columns, widths, heads);
  for (const std::vector<std::string>& row : cells) text += line_of(columns, widths, row);
  return text;
}

std::vector<std::string> cells_of(const TableRow& row) {
  std::vector<std::string> cells;
  cells.reserve(row.figures.size());
  for (const RowFigure& figure : row.figures) cells.push_back(figure.text + figure.suffix);
  return cells;
}

}  // namespace agpcs
