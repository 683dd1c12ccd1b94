// SPDX-License-Identifier: Apache-2.0
// Small charts for the documentation, as SVG files.
#pragma once

#include <string>
#include <vector>

namespace agpcs {

struct Series {
  std::string name;
  std::vector<double> values;  ///< by label
};

struct Chart {
  std::string title, x, y;
  std::vector<std::string> labels;  ///< evenly along the x axis
  std::vector<Series> series;       ///< at most six
};

/// Lines. y is logarithmic: values > 0.
std::string line_chart(const Chart& chart);
/// Bars from 0, those of a label side by side, or on top of each other.
std::string bar_chart(const Chart& chart, bool stacked);

}  // namespace agpcs
