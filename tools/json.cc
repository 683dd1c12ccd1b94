// SPDX-License-Identifier: Apache-2.0
#include "tools/json.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

namespace agpcs {
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

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < ' ') {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + '"';
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  text_ += json_string(name) + ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) { return raw(json_string(text)); }

JsonWriter& JsonWriter::value(double number) {
  return std::isfinite(number) ? raw(fmt::format("{}", number)) : null();
}

JsonWriter& JsonWriter::raw(std::string_view text) {
  separate();
  text_ += text;
  return *this;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  ++depth_;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  --depth_;
  if (!first_) new_line();
  text_ += bracket;
  first_ = false;
  return *this;
}

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (!first_) text_ += ',';
  if (depth_ > 0) new_line();
  first_ = false;
}

void JsonWriter::new_line() { text_ += '\n' + std::string(2 * depth_, ' '); }

}  // namespace agpcs
