// SPDX-License-Identifier: Apache-2.0
#include "tools/common/words/parse_fault.h"

#include "ir/base/diagnostics.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

constexpr std::string_view kTruth = "true or false";

bool is_flag(const CLI::Option& option) { return option.get_expected_max() == 0; }

bool is_whole(const std::string& number) { return number.find('.') == std::string::npos; }

/// Returns "3600" for "3600.000000".
std::string short_number(const std::string& text) {
  return is_whole(text) ? text : fmt::format("{}", std::strtod(text.c_str(), nullptr));
}

/// Returns what stands between commas.
std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// Returns the parts of `text` if all of it looks like `pattern`.
std::optional<std::smatch> match(const std::string& text, const char* pattern) {
  std::smatch parts;
  if (!std::regex_match(text, parts, std::regex(pattern))) return std::nullopt;
  return parts;
}

/// Returns what the option called `name` of `app`, or of the subcommand that is given, takes.
std::string what_it_takes(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  for (const CLI::App* command : app.get_subcommands()) {
    if (option == nullptr) option = command->get_option_no_throw(name);
  }
  if (option != nullptr && is_flag(*option)) return std::string(kTruth);
  const std::string type = option == nullptr ? "" : option->get_type_name();
  return type.rfind("INT", 0) == 0 || type.rfind("UINT", 0) == 0 ? "a whole number" : "a number";
}

}  // namespace

ParseFault parse_fault(const CLI::ParseError& error, const CLI::App& app) {
  const std::string what = error.what();
  if (const auto value = match(what, "Could not convert: (\\S+) = (.*)")) {
    const std::string option = (*value)[1];
    return {
        option,
        fmt::format("{}: '{}' is not {}", option, (*value)[2].str(), what_it_takes(app, option)),
        ""};
  }
  const auto named = match(what, "(\\S+): (.*)");
  if (!named) return {"", what, ""};
  const std::string option = (*named)[1], rest = (*named)[2];
  if (const auto range = match(rest, "Value (.*) not in range (\\S+) to (\\S+)")) {
    const std::string least = (*range)[2], most = (*range)[3];
    return {option,
            fmt::format("{}: '{}' is not a {} from {} to {}", option, (*range)[1].str(),
                        is_whole(least) ? "whole number" : "number", short_number(least),
                        short_number(most)),
            ""};
  }
  if (const auto choice = match(rest, "(.*) not in \\{(.*)\\}")) {
    const std::string word = (*choice)[1];
    const std::vector<std::string> words = words_of((*choice)[2]);
    const std::string near = nearest(word, words);
    return {option, fmt::format("{}: '{}' is not one of {}", option, word, fmt::join(words, ", ")),
            near.empty() ? "" : fmt::format("did you mean '{}'?", near)};
  }
  if (match(rest, "\\d+ required .* missing")) {
    return {option, fmt::format("{} needs a value", option), ""};
  }
  if (const auto many = match(rest, "At Most 1 required but received (\\d+)")) {
    return {option, fmt::format("{} takes one value, is given {}", option, (*many)[1].str()), ""};
  }
  return {option, what, ""};
}

std::optional<ParseFault> untrue_flag(const CLI::Option& option) {
  if (!is_flag(option)) return std::nullopt;
  constexpr std::string_view kValues[] = {"true", "false", "1", "0"};
  for (const std::string& given : option.results()) {
    if (std::find(std::begin(kValues), std::end(kValues), given) != std::end(kValues)) continue;
    const std::string name = option.get_name();
    return ParseFault{name, fmt::format("{}: '{}' is not {}", name, given, kTruth), ""};
  }
  return std::nullopt;
}

}  // namespace agpcs
