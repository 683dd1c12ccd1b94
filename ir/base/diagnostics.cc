// SPDX-License-Identifier: Apache-2.0
#include "ir/base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kWidest = 160;  // widest part of a source line that is quoted, in bytes
constexpr std::string_view kIndent = "    ";

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_character(c); }));
}

// Source text may contain any byte. What would disturb a terminal is shown as a blank or '?'.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += c == '\t' ? ' ' : (byte < 0x20 || byte == 0x7f) ? '?' : c;
  }
  return out;
}

// Returns the part of `line` to quote: without leading blanks, and little more than what is
// underlined.
std::pair<std::size_t, std::size_t> quoted_range(std::string_view line, std::size_t at) {
  std::size_t first = std::min(line.find_first_not_of(" \t"), at);
  if (at - first > kWidest / 2) {
    first = at - kWidest / 2;
    while (first < at && continues_character(line[first])) ++first;
  }
  std::size_t last = line.size();
  if (last - first > kWidest) {
    last = first + kWidest;
    while (last > at && continues_character(line[last])) --last;
  }
  return {first, last};
}

// Returns the source line and, below it, the caret; both end in LF.
std::string quote(std::string_view line, const SourceRange& where) {
  const std::size_t at =
      std::min(static_cast<std::size_t>(std::max(where.column, 1) - 1), line.size());
  const auto [first, last] = quoted_range(line, at);
  const std::size_t end =
      std::min(at + static_cast<std::size_t>(std::max(where.length, 1)), std::max(last, at));
  const std::size_t underlined = std::max<std::size_t>(characters(line.substr(at, end - at)), 1);
  return fmt::format("{0}{1}\n{0}{2:>{3}}^{2:~>{4}}\n", kIndent,
                     printable(line.substr(first, last - first)), "",
                     characters(line.substr(first, at - first)), underlined - 1);
}

std::vector<std::string> lines_of(const std::string& source) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < source.size();) {
    const std::size_t end = std::min(source.find('\n', begin), source.size());
    const bool crlf = end > begin && source[end - 1] == '\r';
    lines.push_back(source.substr(begin, end - begin - (crlf ? 1 : 0)));
    begin = end + 1;
  }
  return lines;
}

constexpr std::size_t kMostOfKind = 20;  // messages of one kind that are shown

// Returns "..." for what is in quotes or brackets and for each number. Messages that are alike then
// are of one kind.
std::string kind_of(std::string_view message) {
  std::string kind;
  char until = 0;  // what ends the part being left out
  for (const char c : message) {
    const bool digit = c >= '0' && c <= '9';
    if (until != 0) {
      if (c != until) continue;
      kind += c;
      until = 0;
    } else if (c == '\'' || c == '[') {
      kind += fmt::format("{}...", c);
      until = c == '[' ? ']' : c;
    } else if (!digit) {
      kind += c;
    } else if (!kind.ends_with("...")) {
      kind += "...";
    }
  }
  return kind;
}

// Returns "error: message" of an entry's text, which begins with file and place.
std::string_view said_in(std::string_view text, bool is_error) {
  text = text.substr(0, text.find('\n'));
  const std::size_t at = text.find(is_error ? ": error: " : ": warning: ");
  return at == std::string_view::npos ? text : text.substr(at + 2);
}

// Returns the texts of the wanted entries, one a line; of each kind the first, and how many more.
template <typename Entry, typename F>
std::string joined(const std::string& file, const std::vector<Entry>& entries, const F& is_wanted) {
  std::string text;
  const auto add_line = [&](const std::string& line) { text += (text.empty() ? "" : "\n") + line; };
  std::map<std::string, std::size_t> counts;
  std::vector<std::string> left_out;  // kinds of which not all are shown
  for (const Entry& entry : entries) {
    if (!is_wanted(entry)) continue;
    std::string kind = kind_of(said_in(entry.text, entry.is_error));
    const std::size_t count = ++counts[kind];
    if (count <= kMostOfKind) add_line(entry.text);
    if (count == kMostOfKind + 1) left_out.push_back(std::move(kind));
  }
  for (const std::string& kind : left_out) {
    add_line(
        fmt::format("{}: and {} more of this kind: {}", file, counts[kind] - kMostOfKind, kind));
  }
  return text;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a`
// into `b`; letter case does not count.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

Diagnostics::Diagnostics(std::string file, std::string source)
    : file_(std::move(file)), lines_(lines_of(source)) {}

void Diagnostics::error(SourceRange where, std::string message, std::string hint) {
  add(true, "", where, message, hint);
}

void Diagnostics::warning(SourceRange where, std::string message, std::string hint) {
  add(false, "", where, message, hint);
}

void Diagnostics::error_at(std::string_view what, std::string message, std::string hint) {
  add(true, std::string(what), {}, message, hint);
}

void Diagnostics::warning_at(std::string_view what, std::string message, std::string hint) {
  add(false, std::string(what), {}, message, hint);
}

void Diagnostics::include(const Status& failure) {
  ++errors_;
  entries_.push_back({true, failure.message()});
}

void Diagnostics::add(bool is_error, const std::string& place, SourceRange where,
                      const std::string& message, const std::string& hint) {
  std::string text = file_;
  if (where.line > 0) text += fmt::format(":{}", where.line);
  if (where.line > 0 && where.column > 0) text += fmt::format(":{}", where.column);
  if (!place.empty()) text += ": " + place;
  text += fmt::format(": {}: {}\n", is_error ? "error" : "warning", message);
  if (where.line > 0 && where.column > 0 && static_cast<std::size_t>(where.line) <= lines_.size()) {
    text += quote(lines_[static_cast<std::size_t>(where.line) - 1], where);
  }
  if (!hint.empty()) text += fmt::format("  hint: {}\n", hint);
  text.pop_back();
  errors_ += is_error ? 1 : 0;
  entries_.push_back({is_error, std::move(text)});
}

std::string Diagnostics::text() const {
  return joined(file_, entries_, [](const Entry&) { return true; });
}

std::string Diagnostics::warnings() const {
  return joined(file_, entries_, [](const Entry& entry) { return !entry.is_error; });
}

Status Diagnostics::status() const { return ok() ? Status() : invalid_input(text()); }

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::size_t best = limit + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= best) continue;
    best = distance;
    found = candidate;
  }
  return found;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates,
                         std::string_view plural) {
  const std::string near = nearest(word, candidates);
  const std::string list = fmt::format("{}: {}", plural, fmt::join(candidates, ", "));
  return near.empty() ? list : fmt::format("did you mean '{}'? {}", near, list);
}

}  // namespace agpcs
