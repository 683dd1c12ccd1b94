// SPDX-License-Identifier: Apache-2.0
// SVG inside HTML: what charts are drawn with. Colours come from the page's style, by class.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// `text` between tags or in an attribute's quotes: & < > " ' are escaped; control characters, and
/// bytes that are not UTF-8, become U+FFFD.
std::string html_text(std::string_view text);

/// "12", "0.5", "-3.1": a coordinate, to a tenth.
std::string coordinate(double value);

/// Round numbers from the first at or above `low` to the last at or below `high`, about `count` of
/// them. Needs: low < high, count > 0.
std::vector<double> round_ticks(double low, double high, int count);

/// A file of its own from an element, with its style.
std::string svg_file(std::string element, std::string_view style);

/// A drawing `width` units wide, which scales to the page. y grows downwards.
class Svg {
 public:
  /// `label` says what it shows, for those who cannot see it.
  Svg(double width, std::string_view label);

  /// `title` appears over it.
  void rect(double x, double y, double width, double height, std::string_view css,
            std::string_view title = "");
  void text(double x, double y, std::string_view text, std::string_view css = "");
  void line(double x1, double y1, double x2, double y2, std::string_view css);
  void path(std::string_view commands, std::string_view css);

  /// The element, `height` units high.
  std::string element(double height) const;

 private:
  double width_;
  std::string label_, body_;
};

}  // namespace agpcs
