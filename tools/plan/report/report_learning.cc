// SPDX-License-Identifier: Apache-2.0
// Draws the learning curve of a search: four figures over its episodes. For a long search, a column
// stands for several episodes and shows their mean as a line and their range as a band.
#include "tools/common/svg.h"
#include "tools/plan/report/report_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

constexpr double kPanelWidth = 490, kPanelHeight = 150, kLeft = 56, kTop = 22, kBottom = 22;
constexpr std::size_t kPoints = 200;

struct Panel {
  const char* title;
  double EpisodeLog::*value;
};
constexpr std::array<Panel, 4> kPanels = {
    Panel{"best cost, relative to the start", &EpisodeLog::best_cost},
    Panel{"reward (Formula 2)", &EpisodeLog::reward},
    Panel{"loss", &EpisodeLog::loss},
    Panel{"epsilon", &EpisodeLog::epsilon},
};

/// Episodes that share a column.
struct Column {
  double episode = 0, mean = 0;
  double low = std::numeric_limits<double>::infinity(), high = -low;
};

std::vector<Column> columns_of(std::span<const EpisodeLog> log, double EpisodeLog::*value) {
  std::vector<Column> columns;
  const std::size_t count = std::min(kPoints, log.size());
  for (std::size_t c = 0; c < count; ++c) {
    const std::size_t first = c * log.size() / count, end = (c + 1) * log.size() / count;
    Column column;
    for (std::size_t i = first; i < end; ++i) {
      const double part = 1.0 / static_cast<double>(end - first);
      column.episode += part * static_cast<double>(log[i].episode);
      column.mean += part * (log[i].*value);
      column.low = std::min(column.low, log[i].*value);
      column.high = std::max(column.high, log[i].*value);
    }
    columns.push_back(column);
  }
  return columns;
}

/// Maps values to places on the drawing.
struct Scale {
  double low, high, from, to;
  double operator()(double value) const {
    return from + (value - low) / (high - low) * (to - from);
  }
};

/// Returns a range that is not empty, with some margin.
std::pair<double, double> range_of(const std::vector<Column>& columns) {
  double low = columns.front().low, high = columns.front().high;
  for (const Column& column : columns) {
    low = std::min(low, column.low);
    high = std::max(high, column.high);
  }
  const double room = high > low ? 0.05 * (high - low) : 0.5 * std::max(std::abs(high), 1e-3);
  return {low - room, high + room};
}

void draw_panel(Svg& svg, const Panel& panel, std::span<const EpisodeLog> log, double left,
                double top) {
  const std::vector<Column> columns = columns_of(log, panel.value);
  const auto [low, high] = range_of(columns);
  const double right = left + kPanelWidth - 10, bottom = top + kPanelHeight - kBottom;
  const auto first = static_cast<double>(log.front().episode);
  const auto last = static_cast<double>(log.back().episode);
  const Scale x{first, std::max(last, first + 1), left + kLeft, right};
  const Scale y{low, high, bottom, top + kTop};
  svg.text(left + kLeft, top + 13, panel.title, "head");
  for (const double tick : round_ticks(low, high, 6)) {
    svg.line(left + kLeft, y(tick), right, y(tick), "grid");
    svg.text(left + kLeft - 5, y(tick) + 4, fmt::format("{:.4g}", tick), "end");
  }
  for (const double tick : round_ticks(x.low, x.high, 5)) {
    svg.text(x(tick), bottom + 15, fmt::format("{:.6g}", tick), "tick");
  }
  std::string line, upper, lower;
  for (const Column& column : columns) {
    const std::string at = coordinate(x(column.episode));
    line += fmt::format("{}{} {}", line.empty() ? "M" : "L", at, coordinate(y(column.mean)));
    upper += fmt::format("{}{} {}", upper.empty() ? "M" : "L", at, coordinate(y(column.high)));
    lower.insert(0, fmt::format("L{} {}", at, coordinate(y(column.low))));
  }
  if (log.size() > columns.size()) svg.path(upper + lower + "z", "band");
  svg.path(line + "h0", "curve");  // h0 draws a dot if there is only one episode
}

}  // namespace

bool has_learned(std::span<const EpisodeLog> log) {
  return std::any_of(log.begin(), log.end(), [](const EpisodeLog& episode) {
    return episode.epsilon > 0 || episode.loss > 0;
  });
}

std::string learning_chart(std::span<const EpisodeLog> log) {
  Svg svg(2 * kPanelWidth + 20, "the search's best cost, reward, loss and epsilon over episodes");
  for (std::size_t i = 0; i < kPanels.size(); ++i) {
    const auto column = static_cast<double>(i % 2), row = static_cast<double>(i / 2);
    draw_panel(svg, kPanels[i], log, column * (kPanelWidth + 10), row * (kPanelHeight + 12));
  }
  return svg.element(2 * kPanelHeight + 12);
}

}  // namespace agpcs
