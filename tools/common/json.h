// SPDX-License-Identifier: Apache-2.0
// The JSON that commands write and read, by the library nlohmann-json. Other rooms use it through
// this header.
#pragma once

#include <agpcs/status.h>

// An enumeration would become a number without a word.
#define JSON_DISABLE_ENUM_SERIALIZATION 1
#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace agpcs {

/// A JSON value. Its objects keep their keys in the order in which they were added.
using Json = nlohmann::ordered_json;

/// Returns `value` as a document with two spaces of indentation and a line end. Numbers that are
/// not finite become null; bytes that are not UTF-8 become U+FFFD.
std::string json_text(const Json& value);

/// Returns what `json_text` does on one line, without a line end: {"event": "step", "step": 3}.
std::string json_line(const Json& value);

/// Returns an array of `to_json(element)` for each element.
template <typename Range, typename Function>
Json json_array(const Range& elements, Function to_json) {
  Json array = Json::array();
  for (const auto& element : elements) array.push_back(to_json(element));
  return array;
}

/// Returns an object from pairs of a key and a value.
template <typename Pairs>
Json json_object(const Pairs& pairs) {
  Json object = Json::object();
  for (const auto& [key, value] : pairs) object[key] = value;
  return object;
}

/// Returns the value, or null if there is none.
template <typename Value>
Json json_or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

/// The most brackets inside one another that `parse_json` reads.
inline constexpr int kMostJsonDepth = 64;

/// A file that is expected to be JSON, for messages.
struct JsonFile {
  std::string_view name;       ///< "trace.json"
  std::string_view hint = {};  ///< where such a file comes from
};

/// Parses one JSON document. The member `skipped` of the outermost object is checked but not kept,
/// so it takes no memory. Errors (kInvalidInput) name the place: the text is not JSON, is nested
/// deeper than kMostJsonDepth, or has a number that no double can hold.
Result<Json> parse_json(std::string_view text, const JsonFile& file, std::string_view skipped = {});

/// Does the same, gives each element of the array `listed` of the outermost object to `take` as
/// soon as it is read, and does not keep it. A document with millions of elements takes the memory
/// of one. Elements that are neither objects nor arrays stay in the document.
Result<Json> parse_json_list(std::string_view text, const JsonFile& file, std::string_view listed,
                             const std::function<void(const Json& element)>& take);

}  // namespace agpcs
