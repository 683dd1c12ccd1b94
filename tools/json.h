// SPDX-License-Identifier: Apache-2.0
// A JSON writer: two spaces of indentation, keys in the order written, the same bytes everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace agpcs {

/// Writes one JSON document. Calls follow its structure:
///
///     JsonWriter json;
///     json.begin_object().key("step_seconds").value(0.5).key("ranks").begin_array().value(1);
///     json.end_array().end_object();
///     json.text();
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag) { return raw(flag ? "true" : "false"); }
  JsonWriter& value(int number) { return value(static_cast<std::int64_t>(number)); }
  JsonWriter& value(std::int64_t number) { return raw(std::to_string(number)); }
  JsonWriter& value(std::uint64_t number) { return raw(std::to_string(number)); }
  JsonWriter& value(double number);  ///< the shortest text that reads back; null if not finite
  JsonWriter& null() { return raw("null"); }

  /// The document, with a line end.
  std::string text() const { return text_ + '\n'; }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& raw(std::string_view text);
  void separate();
  void new_line();

  std::string text_;
  std::size_t depth_ = 0;
  bool first_ = true;       // nothing yet in the innermost bracket
  bool after_key_ = false;  // the value stays on the key's line
};

/// `text` as a JSON string, with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

/// The length of the UTF-8 character that `text` begins with; 0 when it is none. Needs: not empty.
std::size_t utf8_length(std::string_view text);

}  // namespace agpcs
