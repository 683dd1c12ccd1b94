// SPDX-License-Identifier: Apache-2.0
#include "tools/allreduce/picture.h"

#include "tools/common/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {
namespace {

// Readers of SVG that know no variables, unlike browsers, take the colour before each of them.
constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --page: #fff; --ink: #1c2430; --dim: #5b6675; --grid: #c9d0da;
  --idle: #eef0f4; --reduce: #2f6fb3; --gather: #d9730d; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #14181e; --ink: #e3e7ed; --dim: #98a3b3; --grid: #4a5463; --idle: #222831;
    --reduce: #58a0ea; --gather: #f39b45; }
}
body { margin: 0 auto; padding: 1.5rem; max-width: 72rem;
  background: #fff; background: var(--page); }
svg { font: 12px system-ui, sans-serif; background: #fff; background: var(--page); }
text { fill: #1c2430; fill: var(--ink); }
.title { font-size: 17px; font-weight: 600; }
.head { font-weight: 600; }
.dim { fill: #5b6675; fill: var(--dim); }
.row { fill: #5b6675; fill: var(--dim); text-anchor: end; font-size: 10px; }
.tick { fill: #5b6675; fill: var(--dim); text-anchor: middle; font-size: 11px; }
.end { fill: #5b6675; fill: var(--dim); text-anchor: end; font-size: 11px; }
.grid { stroke: #c9d0da; stroke: var(--grid); }
.border { stroke: #1c2430; stroke: var(--ink); stroke-dasharray: 3 2; }
.page { fill: #fff; fill: var(--page); }
.idle { fill: #eef0f4; fill: var(--idle); }
.r1, .r2, .r3, .r4, .r5 { fill: #2f6fb3; fill: var(--reduce); }
.g1, .g2, .g3, .g4, .g5 { fill: #d9730d; fill: var(--gather); }
.r1, .g1 { fill-opacity: .2; } .r2, .g2 { fill-opacity: .4; } .r3, .g3 { fill-opacity: .6; }
.r4, .g4 { fill-opacity: .8; }
)";

constexpr double kWidth = 1040, kLeft = 130, kRight = 20;
constexpr double kBarsTop = 96, kBarsHeight = 54, kRowsTop = kBarsTop + kBarsHeight + 22;
constexpr double kGroupHeight = 20;
constexpr std::size_t kMostRows = 160, kMostColumns = 240, kMostTitles = 6'000;

/// Links that join the same kinds of nodes in the same direction.
struct Group {
  std::string name;
  std::vector<int> links;
};

std::vector<Group> groups_of(const Topology& topology) {
  std::vector<Group> groups = {{"server to switch", {}},
                               {"switch to server", {}},
                               {"server to server", {}},
                               {"switch to switch", {}}};
  for (std::size_t l = 0; l < topology.links.size(); ++l) {
    const bool from = topology.is_server(topology.links[l].from);
    const bool to = topology.is_server(topology.links[l].to);
    const std::size_t group = from ? (to ? 2 : 0) : (to ? 1 : 3);
    groups[group].links.push_back(static_cast<int>(l));
  }
  groups.erase(std::remove_if(groups.begin(), groups.end(),
                              [](const Group& group) { return group.links.empty(); }),
               groups.end());
  for (Group& group : groups) {
    std::stable_sort(group.links.begin(), group.links.end(), [&](int a, int b) {
      const auto& x = topology.links[static_cast<std::size_t>(a)];
      const auto& y = topology.links[static_cast<std::size_t>(b)];
      const bool by_to = group.name == "switch to server";  // puts a server's links together
      return by_to ? std::pair(x.to, x.from) < std::pair(y.to, y.from)
                   : std::pair(x.from, x.to) < std::pair(y.from, y.to);
    });
  }
  return groups;
}

/// The units that some links can carry in some rounds, and those that they carry, by phase.
struct Cell {
  double room = 0;
  std::array<double, 2> used = {0, 0};
  double load(std::size_t phase) const { return room > 0 ? used[phase] / room : 0; }
  double load() const { return load(0) + load(1); }
};

/// Cells by row, then column, and the sums of the columns.
struct Grid {
  std::size_t rows = 0, columns = 0;
  std::vector<std::string> names;  // by row
  std::vector<std::size_t> group;  // by row
  std::vector<Cell> cells, sums;
  Cell& at(std::size_t row, std::size_t column) { return cells[row * columns + column]; }
  const Cell& at(std::size_t row, std::size_t column) const {
    return cells[row * columns + column];
  }
};

std::string link_name(const Topology& topology, int link) {
  const Topology::Link& l = topology.links[static_cast<std::size_t>(link)];
  return fmt::format("{} → {}", topology.name_of(l.from), topology.name_of(l.to));
}

/// Adds the rows and returns the row of each link.
std::vector<std::size_t> add_rows(const Topology& topology, const std::vector<Group>& groups,
                                  Grid& grid) {
  std::vector<std::size_t> row_of(topology.links.size());
  const std::size_t share = (topology.links.size() + kMostRows - 1) / kMostRows;  // links per row
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<int>& links = groups[g].links;
    for (std::size_t first = 0; first < links.size(); first += share) {
      const std::size_t last = std::min(first + share, links.size()) - 1;
      for (std::size_t i = first; i <= last; ++i) {
        row_of[static_cast<std::size_t>(links[i])] = grid.rows;
      }
      grid.names.push_back(link_name(topology, links[first]) + (last > first ? " ..." : ""));
      grid.group.push_back(g);
      ++grid.rows;
    }
  }
  return row_of;
}

Grid grid_of(const Topology& topology, const FlowSchedule& schedule,
             const std::vector<Group>& groups) {
  Grid grid;
  const std::vector<std::size_t> row_of = add_rows(topology, groups, grid);
  const auto rounds = static_cast<std::size_t>(std::max<std::int64_t>(1, schedule.sub_rounds()));
  grid.columns = std::min(rounds, kMostColumns);
  grid.cells.resize(grid.rows * grid.columns);
  grid.sums.resize(grid.columns);
  const auto column_of = [&](std::size_t round) { return round * grid.columns / rounds; };
  std::vector<double> rounds_in(grid.columns, 0);
  for (std::size_t round = 0; round < rounds; ++round) ++rounds_in[column_of(round)];
  for (std::size_t l = 0; l < row_of.size(); ++l) {
    for (std::size_t c = 0; c < grid.columns; ++c) {
      const double room = static_cast<double>(topology.links[l].capacity) * rounds_in[c];
      grid.at(row_of[l], c).room += room;
      grid.sums[c].room += room;
    }
  }
  for (const std::size_t phase : {std::size_t{0}, std::size_t{1}}) {
    for (const Workload& w : phase == 0 ? schedule.reduce_scatter : schedule.all_gather) {
      const std::size_t column = column_of(static_cast<std::size_t>(w.round));
      for (const int link : schedule.routes[static_cast<std::size_t>(w.route)].links) {
        ++grid.at(row_of[static_cast<std::size_t>(link)], column).used[phase];
        ++grid.sums[column].used[phase];
      }
    }
  }
  return grid;
}

/// Returns "r1" to "r5" or "g1" to "g5" by phase and fifth; "" for an idle cell.
std::string class_of(const Cell& cell) {
  if (cell.load() <= 0) return "";
  const int fifth = std::clamp(static_cast<int>(std::ceil(5 * cell.load() - 1e-9)), 1, 5);
  return fmt::format("{}{}", cell.used[0] >= cell.used[1] ? 'r' : 'g', fifth);
}

class Picture {
 public:
  Picture(const Topology& topology, const FlowSchedule& schedule, std::string_view heading)
      : schedule_(schedule),
        groups_(groups_of(topology)),
        grid_(grid_of(topology, schedule, groups_)),
        svg_(kWidth, fmt::format("load of the links of {} over rounds", topology.name)),
        row_height_(grid_.rows <= 40   ? 15
                    : grid_.rows <= 80 ? 11
                                       : 6),
        column_width_((kWidth - kLeft - kRight) / static_cast<double>(grid_.columns)),
        bottom_(kRowsTop + static_cast<double>(grid_.rows) * row_height_ +
                static_cast<double>(groups_.size()) * kGroupHeight) {
    svg_.rect(0, 0, kWidth, bottom_ + 44, "page");
    svg_.text(12, 26, fmt::format("Load of the links of {}", topology.name), "title");
    svg_.text(12, 46, heading, "dim");
    draw_legend();
    draw_means();
    draw_rows();
    draw_rounds();
  }

  std::string element() const { return svg_.element(bottom_ + 44); }

 private:
  double x_of(std::size_t column) const {
    return kLeft + static_cast<double>(column) * column_width_;
  }
  double gap() const { return column_width_ > 8 ? 1 : 0; }  // between cells

  void draw_legend() {
    double x = kLeft;
    for (const auto& [letter, name] : {std::pair('r', "reduce-scatter"), {'g', "all-gather"}}) {
      for (int fifth = 1; fifth <= 5; ++fifth, x += 14) {
        svg_.rect(x, 60, 13, 12, "idle");
        svg_.rect(x, 60, 13, 12, fmt::format("{}{}", letter, fifth));
      }
      svg_.text(x + 5, 70, name);
      x += 115;
    }
    svg_.text(x, 70, "a fifth of a link's capacity is used, to all of it", "dim");
  }

  void draw_means() {
    const double base = kBarsTop + kBarsHeight;
    for (const int part : {0, 50, 100}) {
      const double y = base - kBarsHeight * part / 100.0;
      svg_.line(kLeft, y, kWidth - kRight, y, "grid");
      svg_.text(kLeft - 6, y + 4, fmt::format("{}%", part), "end");
    }
    svg_.text(12, kBarsTop + kBarsHeight / 2 + 4, "all links", "head");
    for (std::size_t c = 0; c < grid_.columns; ++c) {
      double y = base;
      for (const std::size_t phase : {std::size_t{0}, std::size_t{1}}) {
        const double height = kBarsHeight * grid_.sums[c].load(phase);
        if (height <= 0) continue;
        y -= height;
        svg_.rect(
            x_of(c), y, column_width_ - gap(), height, phase == 0 ? "r5" : "g5",
            fmt::format("{}: {:.0f}% of all links", rounds_of(c), 100 * grid_.sums[c].load()));
      }
    }
  }

  void draw_rows() {
    double y = kRowsTop;
    for (std::size_t row = 0; row < grid_.rows; ++row) {
      if (row == 0 || grid_.group[row] != grid_.group[row - 1]) {
        svg_.text(12, y + 14, groups_[grid_.group[row]].name, "head");
        y += kGroupHeight;
      }
      if (row_height_ > 10 || row == 0 || grid_.group[row] != grid_.group[row - 1]) {
        svg_.text(kLeft - 6, y + std::clamp(row_height_ - 2, 8.0, 11.0), grid_.names[row], "row");
      }
      svg_.rect(kLeft, y, kWidth - kLeft - kRight, row_height_ - 1, "idle");
      draw_row(row, y);
      y += row_height_;
    }
  }

  /// Draws a row. Equal neighbouring cells become one, unless each cell has its own title.
  void draw_row(std::size_t row, double y) {
    const bool titles = grid_.rows * grid_.columns <= kMostTitles;
    for (std::size_t c = 0; c < grid_.columns;) {
      const std::string css = class_of(grid_.at(row, c));
      std::size_t end = c + 1;
      while (!titles && end < grid_.columns && class_of(grid_.at(row, end)) == css) ++end;
      if (!css.empty()) {
        const std::string title = titles ? fmt::format("{}, {}: {:.0f}%", grid_.names[row],
                                                       rounds_of(c), 100 * grid_.at(row, c).load())
                                         : "";
        svg_.rect(x_of(c), y, x_of(end) - x_of(c) - gap(), row_height_ - 1, css, title);
      }
      c = end;
    }
  }

  /// Returns the rounds that a column shows; with sub-chunks, "round 3 2/2".
  std::string rounds_of(std::size_t column) const {
    const auto rounds = static_cast<std::size_t>(schedule_.sub_rounds());
    const auto first = (column * rounds + grid_.columns - 1) / grid_.columns;
    const auto last = ((column + 1) * rounds + grid_.columns - 1) / grid_.columns - 1;
    const auto k = static_cast<std::size_t>(schedule_.sub_chunks);
    if (last > first) return fmt::format("rounds {} to {}", first / k + 1, last / k + 1);
    return k == 1 ? fmt::format("round {}", first + 1)
                  : fmt::format("round {} {}/{}", first / k + 1, first % k + 1, k);
  }

  void draw_rounds() {
    const double k = schedule_.sub_chunks;
    const double rounds = schedule_.rounds();
    const double width = kWidth - kLeft - kRight;
    if (rounds <= 0) return;
    for (const double tick : round_ticks(0, rounds, static_cast<int>(std::min(rounds, 16.0)) + 1)) {
      const double x = kLeft + width * tick / rounds;
      svg_.line(x, bottom_ + 2, x, bottom_ + 7, "grid");
      svg_.text(x, bottom_ + 20, fmt::format("{}", tick), "tick");
    }
    svg_.text(kLeft + width / 2, bottom_ + 36, "rounds of whole chunks", "tick");
    if (schedule_.all_gather.empty() || schedule_.reduce_scatter.empty()) return;
    const double begin = schedule_.all_gather.front().round / k;
    const double x = kLeft + width * begin / rounds;
    svg_.line(x, kBarsTop - 6, x, bottom_ + 4, "border");
    svg_.text(x + 5, kBarsTop - 6, "all-gather begins", "dim");
  }

  const FlowSchedule& schedule_;
  std::vector<Group> groups_;
  Grid grid_;
  Svg svg_;
  double row_height_, column_width_, bottom_;
};

}  // namespace

std::string allreduce_picture(const Topology& topology, const FlowSchedule& schedule,
                              std::string_view heading, bool svg) {
  const std::string element = Picture(topology, schedule, heading).element();
  if (svg) return svg_file(element, kStyle);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n{}</body>\n</html>\n",
      html_text(topology.name), kStyle, element);
}

}  // namespace agpcs
