// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/chart.h"

#include "tools/common/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace agpcs {
namespace {

constexpr char kStyle[] = R"(
svg { font: 12px system-ui, sans-serif; background: #fff; }
text { fill: #1c2430; }
.title { font-size: 15px; font-weight: 600; }
.tick { fill: #5b6675; text-anchor: middle; font-size: 11px; }
.end { fill: #5b6675; text-anchor: end; font-size: 11px; }
.grid { stroke: #dde1e7; }
.page { fill: #fff; }
.l0, .l1, .l2, .l3, .l4, .l5 { fill: none; stroke-width: 2; }
.l0 { stroke: #b3261e; } .l1 { stroke: #d9730d; } .l2 { stroke: #8a6d00; }
.l3 { stroke: #2e7d32; } .l4 { stroke: #2f6fb3; } .l5 { stroke: #6b3fa0; }
.b0 { fill: #b3261e; } .b1 { fill: #d9730d; } .b2 { fill: #8a6d00; }
.b3 { fill: #2e7d32; } .b4 { fill: #2f6fb3; } .b5 { fill: #6b3fa0; }
)";

constexpr double kWidth = 860, kLeft = 64, kRight = 12, kTop = 66, kHeight = 240, kBottom = 46;
constexpr double kBase = kTop + kHeight;

class Axes {
 public:
  explicit Axes(const Chart& chart) : chart_(chart), svg_(kWidth, chart.title) {
    svg_.rect(0, 0, kWidth, kBase + kBottom, "page");
    svg_.text(8, 20, chart.title, "title");
    double x = kLeft;
    for (std::size_t i = 0; i < chart.series.size(); ++i) {
      svg_.rect(x, 34, 12, 8, fmt::format("b{}", i));
      svg_.text(x + 16, 42, chart.series[i].name);
      x += 36 + 6.4 * static_cast<double>(chart.series[i].name.size());
    }
    svg_.text(8, kTop - 8, chart.y);
    svg_.text(kLeft + (kWidth - kLeft) / 2, kBase + 38, chart.x, "tick");
    for (std::size_t i = 0; i < chart.labels.size(); ++i) {
      svg_.text(middle(i), kBase + 18, chart.labels[i], "tick");
    }
  }

  double slot() const {
    return (kWidth - kLeft - kRight) / static_cast<double>(chart_.labels.size());
  }
  double middle(std::size_t label) const {
    return kLeft + slot() * (static_cast<double>(label) + 0.5);
  }
  void grid(double y, const std::string& text) {
    svg_.line(kLeft, y, kWidth - kRight, y, "grid");
    svg_.text(kLeft - 6, y + 4, text, "end");
  }
  Svg& svg() { return svg_; }
  std::string file() const { return svg_file(svg_.element(kBase + kBottom), kStyle); }

 private:
  const Chart& chart_;
  Svg svg_;
};

}  // namespace

std::string line_chart(const Chart& chart) {
  Axes axes(chart);
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Series& series : chart.series) {
    for (const double value : series.values) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  const double first = std::floor(std::log10(low));
  const double last = std::max(first + 1, std::ceil(std::log10(high)));
  const auto y_of = [&](double v) {
    return kBase - kHeight * (std::log10(v) - first) / (last - first);
  };
  for (double power = first; power <= last; ++power) {
    axes.grid(y_of(std::pow(10, power)), fmt::format("{:g}", std::pow(10, power)));
  }
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    std::string path;
    for (std::size_t i = 0; i < chart.series[s].values.size(); ++i) {
      path += fmt::format("{}{} {}", i == 0 ? "M" : " L", coordinate(axes.middle(i)),
                          coordinate(y_of(chart.series[s].values[i])));
    }
    axes.svg().path(path, fmt::format("l{}", s));
  }
  return axes.file();
}

std::string bar_chart(const Chart& chart, bool stacked) {
  Axes axes(chart);
  double high = 0;
  for (std::size_t i = 0; i < chart.labels.size(); ++i) {
    double sum = 0;
    for (const Series& series : chart.series) {
      sum = stacked ? sum + series.values[i] : std::max(sum, series.values[i]);
    }
    high = std::max(high, sum);
  }
  const double scale = kHeight / (high * 1.02);
  for (const double tick : round_ticks(0, high * 1.02, 6)) {
    axes.grid(kBase - tick * scale, fmt::format("{:g}", tick));
  }
  const double count = stacked ? 1 : static_cast<double>(chart.series.size());
  const double width = std::min(46.0, 0.8 * axes.slot() / count);
  for (std::size_t i = 0; i < chart.labels.size(); ++i) {
    double x = axes.middle(i) - width * count / 2, y = kBase;
    for (std::size_t s = 0; s < chart.series.size(); ++s) {
      const double height = chart.series[s].values[i] * scale;
      y = (stacked ? y : kBase) - height;
      axes.svg().rect(x, y, width - 1, height, fmt::format("b{}", s),
                      fmt::format("{}: {:g}", chart.series[s].name, chart.series[s].values[i]));
      if (!stacked) x += width;
    }
  }
  return axes.file();
}

}  // namespace agpcs
