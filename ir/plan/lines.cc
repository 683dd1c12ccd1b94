// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/lines.h"

#include "ir/base/all_values.h"
#include "ir/base/named.h"
#include "ir/plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace agpcs {
namespace {

constexpr std::string_view kIndent = "  ";

std::vector<PlanToken> tokens_of(std::string_view text, int column) {
  std::vector<PlanToken> tokens;
  for (const std::string_view part : split_outside_quotes(text, ' ')) {
    tokens.push_back({part, column});
    column += static_cast<int>(part.size()) + 1;
  }
  return tokens;
}

template <typename Number>
bool read_number(std::string_view text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

/// Reads "s12" as 12.
int read_reference(std::string_view text, char letter) {
  int index = 0;
  if (text.size() < 2 || text.front() != letter || !read_number(text.substr(1), index)) return -1;
  return index < 0 ? -1 : index;
}

void report_indentation(int number, std::string_view line, Diagnostics& diagnostics) {
  diagnostics.error({number, 1, 1}, line.empty() ? "empty line" : "wrong indentation",
                    "items of a section are indented by two spaces, what is below them by four");
}

}  // namespace

std::vector<PlanLine> split_plan_lines(std::string_view text, Diagnostics& diagnostics) {
  std::vector<PlanLine> lines;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (end == std::string_view::npos) {
      diagnostics.error({number, static_cast<int>(line.size()) + 1, 1},
                        "the last line has no line end", "is the file truncated?");
    }
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') {
      diagnostics.error({number, 0, 1}, "carriage return at the end of the line",
                        "lines end in LF alone");
      return lines;
    }
    std::string_view content = line;
    int depth = 0;
    for (; depth < 2 && content.substr(0, kIndent.size()) == kIndent; ++depth) {
      content.remove_prefix(kIndent.size());
    }
    if (content.empty() || content.front() == ' ') {
      report_indentation(number, line, diagnostics);
      continue;
    }
    lines.push_back({number, line, depth, tokens_of(content, 1 + 2 * depth)});
  }
  return lines;
}

SourceRange keyword_range(const PlanLine& line) {
  return {line.number, line.tokens[0].column, static_cast<int>(line.keyword().size())};
}

PlanLines::PlanLines(std::string_view text, Diagnostics& diagnostics)
    : lines_(split_plan_lines(text, diagnostics)), diagnostics_(diagnostics) {}

const PlanLine* PlanLines::expect(const std::string& keyword) {
  const PlanLine* line = peek();
  if (line == nullptr) {
    diagnostics_.error({last_number() + 1, 0, 1},
                       fmt::format("the plan ends where '{}' is expected", keyword));
    return nullptr;
  }
  if (line->keyword() == keyword && line->depth == 0) return &lines_[next_++];
  const std::string found(line->keyword());
  const bool typo = !nearest(found, {keyword}).empty();
  diagnostics_.error(keyword_range(*line),
                     fmt::format("'{}' where '{}' is expected", found, keyword),
                     typo ? fmt::format("did you mean '{}'?", keyword) : "");
  if (typo) ++next_;
  return nullptr;
}

const PlanLine* PlanLines::next_item(const std::string& keyword) {
  while (peek() != nullptr && peek()->depth > 0) {
    const PlanLine* line = &lines_[next_++];
    if (line->depth > 1) {
      report_indentation(line->number, line->text, diagnostics_);
    } else if (keyword.empty() || line->keyword() == keyword) {
      return line;
    } else {
      diagnostics_.error(keyword_range(*line),
                         fmt::format("'{}' where '{}' is expected", line->keyword(), keyword));
    }
  }
  return nullptr;
}

std::vector<const PlanLine*> PlanLines::nested() {
  std::vector<const PlanLine*> found;
  for (; peek() != nullptr && peek()->depth > 1; ++next_) found.push_back(peek());
  return found;
}

void check_total(const PlanLine& line, Diagnostics& diagnostics, std::string_view what,
                 std::int64_t stated, std::int64_t found) {
  if (!diagnostics.ok() || stated == found) return;
  diagnostics.error(keyword_range(line),
                    fmt::format("{}={}, but its lines have {}", what, stated, found));
}

const PlanToken* PlanLineReader::take(std::string_view what) {
  if (failed_) return nullptr;
  if (at_end()) {
    failed_ = true;
    diagnostics_.error({line_.number, static_cast<int>(line_.text.size()) + 1, 1},
                       fmt::format("'{}' line ends where {} is expected", line_.keyword(), what));
    return nullptr;
  }
  return &line_.tokens[next_++];
}

void PlanLineReader::fail(std::string message, std::string hint) {
  if (failed_) return;
  failed_ = true;
  const PlanToken& token = line_.tokens[next_ - 1];
  diagnostics_.error({line_.number, token.column, static_cast<int>(token.text.size())},
                     std::move(message), std::move(hint));
}

std::string_view PlanLineReader::word(std::string_view what) {
  const PlanToken* token = take(what);
  if (token == nullptr) return {};
  if (token->text.empty()) fail(fmt::format("two spaces where {} is expected", what));
  return token->text;
}

std::string PlanLineReader::name(std::string_view what) {
  const std::string_view token = word(what);
  if (failed_) return {};
  const std::optional<std::string> read = unquoted(token);
  if (read) return *read;
  fail(fmt::format("'{}' is not {}", token, what),
       "a name with spaces, quotes, '=' or ',' stands in double quotes");
  return {};
}

int PlanLineReader::reference(char letter, std::string_view what) {
  const std::string_view token = word(what);
  if (failed_) return -1;
  const int index = read_reference(token, letter);
  if (index < 0) fail(fmt::format("'{}' is not {} such as {}0", token, what, letter));
  return index;
}

bool PlanLineReader::next_is(std::string_view key) const {
  if (failed_ || at_end()) return false;
  const std::string_view token = line_.tokens[next_].text;
  return token.size() > key.size() && token.substr(0, key.size()) == key &&
         token[key.size()] == '=';
}

bool PlanLineReader::next_is_word() const {
  return !failed_ && !at_end() && line_.tokens[next_].text.find('=') == std::string_view::npos;
}

void PlanLineReader::fail_key(const PlanToken& token, const std::string& expected) {
  const std::string found(token.text.substr(0, token.text.find('=')));
  if (std::find(keys_.begin(), keys_.end(), found) == keys_.end()) {
    return fail(fmt::format("unknown key '{}' in '{}'", found, line_.keyword()),
                did_you_mean(found, keys_, "keys"));
  }
  fail(fmt::format("key '{}' is missing before '{}'", expected, found),
       fmt::format("keys come in this order: {}", [&] {
         std::string list;
         for (const std::string& key : keys_) list += (list.empty() ? "" : ", ") + key;
         return list;
       }()));
}

std::string_view PlanLineReader::value(const std::string& key) {
  const bool matches = next_is(key);
  const PlanToken* token = take("'" + key + "='");
  if (token == nullptr) return {};
  if (!matches) {
    fail_key(*token, key);
    return {};
  }
  const std::string_view text = token->text.substr(key.size() + 1);
  if (text.empty()) fail(fmt::format("key '{}' has no value", key));
  return text;
}

std::string PlanLineReader::name_value(const std::string& key) {
  const std::string_view text = value(key);
  if (failed_) return {};
  const std::optional<std::string> read = unquoted(text);
  if (!read) fail(fmt::format("'{}' is not a name", text));
  return read.value_or("");
}

std::int64_t PlanLineReader::integer_value(const std::string& key) {
  const std::string_view text = value(key);
  std::int64_t number = 0;
  if (!failed_ && !read_number(text, number))
    fail(fmt::format("{} is '{}', not an integer", key, text));
  return number;
}

std::uint64_t PlanLineReader::unsigned_value(const std::string& key) {
  const std::string_view text = value(key);
  std::uint64_t number = 0;
  if (!failed_ && !read_number(text, number)) {
    fail(fmt::format("{} is '{}', not an integer from 0 to 2^64 - 1", key, text));
  }
  return number;
}

double PlanLineReader::number_value(const std::string& key) {
  const std::string_view text = value(key);
  double number = 0;
  if (!failed_ && (!read_number(text, number) || !std::isfinite(number))) {
    fail(fmt::format("{} is '{}', not a number", key, text));
  }
  return number;
}

bool PlanLineReader::yes_no_value(const std::string& key) {
  const std::string_view text = value(key);
  if (!failed_ && text != "yes" && text != "no") {
    fail(fmt::format("{} is '{}', not yes or no", key, text));
  }
  return text == "yes";
}

DType PlanLineReader::type_value(const std::string& key) {
  const std::string_view text = value(key);
  const auto named = dtype_named(text);
  if (!named) {
    fail(fmt::format("unknown type '{}'", text), did_you_mean(text, names_of(kDTypes), "types"));
  }
  return named.value_or(DType::kFp32);
}

int PlanLineReader::reference_value(const std::string& key, char letter) {
  const std::string_view text = value(key);
  if (failed_) return -1;
  const int index = read_reference(text, letter);
  if (index < 0) fail(fmt::format("{} is '{}', not a name such as {}0", key, text, letter));
  return index;
}

std::vector<int> PlanLineReader::references_value(const std::string& key, char letter) {
  return list_of_references(value(key), letter, key + " is ");
}

std::vector<int> PlanLineReader::references(char letter, std::string_view what) {
  return list_of_references(word(what), letter, "");
}

std::vector<int> PlanLineReader::list_of_references(std::string_view text, char letter,
                                                    std::string_view said) {
  std::vector<int> indices;
  for (std::size_t begin = 0; !failed_ && begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    indices.push_back(read_reference(text.substr(begin, end - begin), letter));
    if (indices.back() < 0) {
      fail(fmt::format("{}'{}', not names such as {}1,{}2", said, text, letter, letter));
    }
    begin = end + 1;
  }
  return indices;
}

void PlanLineReader::finish() {
  if (failed_ || at_end()) return;
  const PlanToken* token = take("nothing");
  const std::size_t equals = token->text.find('=');
  const std::string found(token->text.substr(0, equals));
  if (equals != std::string_view::npos &&
      std::find(keys_.begin(), keys_.end(), found) == keys_.end()) {
    return fail(fmt::format("unknown key '{}' in '{}'", found, line_.keyword()),
                keys_.empty() ? "" : did_you_mean(found, keys_, "keys"));
  }
  fail(fmt::format("'{}' is more than a '{}' line has", token->text, line_.keyword()));
}

}  // namespace agpcs
