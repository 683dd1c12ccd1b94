// SPDX-License-Identifier: Apache-2.0
// Writes SVG inside HTML, for charts. Colours come from the page's style, by class.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns `text` for use between tags or in an attribute's quotes: & < > " ' are escaped; control
/// characters and bytes that are not UTF-8 become U+FFFD.
std::string html_text(std::string_view text);

/// Returns a coordinate, rounded to a tenth: "12", "0.5", "-3.1".
std::string coordinate(double value);

/// Returns about `count` round numbers, from the first at or above `low` to the last at or below
/// `high`. Needs: low < high, count > 0.
std::vector<double> round_ticks(double low, double high, int count);

/// Makes an SVG file from an element, with its style.
std::string svg_file(std::string element, std::string_view style);

/// A drawing `width` units wide, which scales to the page. y grows downwards.
class Svg {
 public:
  /// `label` describes the drawing for those who cannot see it.
  Svg(double width, std::string_view label);

  /// `title` appears when the pointer is over it.
  void rect(double x, double y, double width, double height, std::string_view css,
            std::string_view title = "");
  void text(double x, double y, std::string_view text, std::string_view css = "");
  void line(double x1, double y1, double x2, double y2, std::string_view css);
  void path(std::string_view commands, std::string_view css);

  /// Returns the element, `height` units high.
  std::string element(double height) const;

 private:
  double width_;
  std::string label_, body_;
};

}  // namespace agpcs
