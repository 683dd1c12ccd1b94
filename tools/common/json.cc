// SPDX-License-Identifier: Apache-2.0
#include "tools/common/json.h"

#include "ir/base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace agpcs {
namespace {

std::string printed(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

/// Ends the parser from within.
struct TooDeep {};

SourceRange place_of(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const std::size_t line_end = before.rfind('\n');
  const std::size_t line_begin = line_end == std::string_view::npos ? 0 : line_end + 1;
  return {1 + static_cast<int>(std::count(before.begin(), before.end(), '\n')),
          1 + static_cast<int>(before.size() - line_begin)};
}

/// Returns "invalid literal" from "[json.exception.parse_error.101] parse error at line 1, column
/// 2: syntax error while parsing value - invalid literal; last read: 'n '". The message quotes the
/// line anyway.
std::string reason_of(const Json::parse_error& error) {
  const std::string_view text = error.what();
  const std::size_t dash = text.find(" - ");
  const std::size_t begin = dash == std::string_view::npos ? 0 : dash + 3;
  return std::string(text.substr(begin, text.find("; last read: ", begin) - begin));
}

}  // namespace

std::string json_text(const Json& value) { return printed(value, 2) + '\n'; }

std::string json_line(const Json& value) {
  std::string line;
  // A line end is between values: inside of a string it would be escaped.
  for (const char c : printed(value, 0)) {
    if (c != '\n') {
      line += c;
    } else if (line.back() == ',') {
      line += ' ';
    }
  }
  return line;
}

namespace {

Result<Json> parse(std::string_view text, const JsonFile& file,
                   const Json::parser_callback_t& keep) {
  const auto error = [&](SourceRange where, const std::string& what) {
    Diagnostics diagnostics{std::string(file.name), std::string(text)};
    diagnostics.error(where, what, std::string(file.hint));
    return diagnostics.status();
  };
  const auto checked = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= kMostJsonDepth) throw TooDeep();
    return keep(depth, event, parsed);
  };
  try {
    return Json::parse(text.begin(), text.end(), checked);
  } catch (const TooDeep&) {
    return error({}, fmt::format("more than {} brackets inside one another", kMostJsonDepth));
  } catch (const Json::parse_error& e) {
    return error(place_of(text, std::max<std::size_t>(e.byte, 1) - 1), "not JSON: " + reason_of(e));
  } catch (const Json::out_of_range&) {
    return error({}, "a number is too large for a double");
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonFile& file, std::string_view skipped) {
  return parse(text, file, [&](int depth, Json::parse_event_t event, const Json& parsed) {
    return !(event == Json::parse_event_t::key && depth == 1 && parsed == skipped);
  });
}

Result<Json> parse_json_list(std::string_view text, const JsonFile& file, std::string_view listed,
                             const std::function<void(const Json& element)>& take) {
  using Event = Json::parse_event_t;
  bool inside = false;
  return parse(text, file, [&](int depth, Event event, const Json& parsed) {
    if (event == Event::key && depth == 1) inside = parsed == listed;
    const bool ends = event == Event::object_end || event == Event::array_end;
    if (!inside || !ends || depth != 2) return true;
    take(parsed);
    return false;
  });
}

}  // namespace agpcs
