// SPDX-License-Identifier: Apache-2.0
#include "tools/common/svg.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

namespace agpcs {
namespace {

/// Returns the length of the UTF-8 character at the start of `text`; 0 if there is none. Needs: not
/// empty.
std::size_t utf8_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80             ? 1
                             : (first & 0xe0) == 0xc0 ? 2
                             : (first & 0xf0) == 0xe0 ? 3
                             : (first & 0xf8) == 0xf0 ? 4
                                                      : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  return length;
}

std::string_view escape_of(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return {};
  }
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto c = static_cast<unsigned char>(text[0]);
    const std::string_view escape = escape_of(text[0]);
    if (length == 0 || c < ' ' || c == 0x7f) {
      out += "\xef\xbf\xbd";
    } else if (!escape.empty()) {
      out += escape;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string coordinate(double value) {
  return fmt::format("{}", std::round(value * 10) / 10 + 0.0);  // + 0.0 avoids "-0"
}

std::vector<double> round_ticks(double low, double high, int count) {
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough * 0.999) step = factor * power;
  }
  std::vector<double> ticks;
  const double slack = 1e-9 * (high - low);
  for (double n = std::ceil((low - slack) / step); n * step <= high + slack; ++n) {
    ticks.push_back(n * step + 0.0);
  }
  return ticks;
}

std::string svg_file(std::string element, std::string_view style) {
  element.insert(element.find('>') + 1, fmt::format("\n<style>{}</style>", style));
  return element.insert(4, " xmlns=\"http://www.w3.org/2000/svg\"");
}

Svg::Svg(double width, std::string_view label) : width_(width), label_(label) {}

void Svg::rect(double x, double y, double width, double height, std::string_view css,
               std::string_view title) {
  body_ += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" class="{}")", coordinate(x),
                       coordinate(y), coordinate(width), coordinate(height), css);
  body_ += title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", html_text(title));
}

void Svg::text(double x, double y, std::string_view text, std::string_view css) {
  body_ += fmt::format(R"(<text x="{}" y="{}" class="{}">{}</text>)", coordinate(x), coordinate(y),
                       css, html_text(text)) +
           "\n";
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css) {
  body_ += fmt::format(R"(<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>)", coordinate(x1),
                       coordinate(y1), coordinate(x2), coordinate(y2), css) +
           "\n";
}

void Svg::path(std::string_view commands, std::string_view css) {
  body_ += fmt::format(R"(<path d="{}" class="{}"/>)", commands, css) + "\n";
}

std::string Svg::element(double height) const {
  return fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)", coordinate(width_),
                     coordinate(height), html_text(label_)) +
         "\n" + body_ + "</svg>\n";
}

}  // namespace agpcs
