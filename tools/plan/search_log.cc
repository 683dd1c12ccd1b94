// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/search_log.h"

#include "ir/base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

namespace agpcs {
namespace {

constexpr std::string_view kHeader = "episode,epsilon,loss,reward,best_cost";
constexpr std::array<std::string_view, 5> kColumns = {"episode", "epsilon", "loss", "reward",
                                                      "best_cost"};

constexpr std::size_t kMostErrors = 10;

template <typename Number>
bool read_number(std::string_view word, Number& number) {
  const char* const end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data(), end, number);
  return error == std::errc() && rest == end;
}

/// A word of a line and where it begins.
struct Field {
  std::string_view word;
  int column = 0;
};

std::vector<Field> fields_of(std::string_view line) {
  std::vector<Field> fields;
  std::size_t begin = 0;
  while (begin <= line.size()) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    fields.push_back({line.substr(begin, end - begin), static_cast<int>(begin) + 1});
    begin = end + 1;
  }
  return fields;
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view file)
      : text_(text), diagnostics_(std::string(file), std::string(text)) {}

  Result<std::vector<EpisodeLog>> read() {
    std::string_view rest = text_;
    int number = 0;
    while ((!rest.empty() || number == 0) && diagnostics_.error_count() < kMostErrors) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      add_line(line, ++number);
      if (number == 1 && !diagnostics_.ok()) break;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (!diagnostics_.ok()) return diagnostics_.status();
    return std::move(episodes_);
  }

 private:
  void add_line(std::string_view line, int number) {
    const int length = std::max(1, static_cast<int>(line.size()));
    if (number == 1) {
      if (line == kHeader) return;
      diagnostics_.error({1, 1, length}, "this is no search log",
                         fmt::format("its first line is '{}'", kHeader));
      return;
    }
    const std::vector<Field> fields = fields_of(line);
    if (fields.size() != kColumns.size()) {
      diagnostics_.error({number, 1, length},
                         fmt::format("{} values, not {}", fields.size(), kColumns.size()));
      return;
    }
    EpisodeLog episode;
    const std::array<double*, 4> values = {&episode.epsilon, &episode.loss, &episode.reward,
                                           &episode.best_cost};
    bool good = check(read_number(fields[0].word, episode.episode), fields[0], 0, number);
    for (std::size_t i = 1; i < fields.size(); ++i) {
      const bool read = read_number(fields[i].word, *values[i - 1]);
      good = check(read && std::isfinite(*values[i - 1]), fields[i], i, number) && good;
    }
    if (!good) return;
    if (!episodes_.empty() && episode.episode <= episodes_.back().episode) {
      diagnostics_.error(
          {number, 1, static_cast<int>(fields[0].word.size())},
          fmt::format("episode {} follows episode {}", episode.episode, episodes_.back().episode),
          "one search a log, its episodes in order");
      return;
    }
    episodes_.push_back(episode);
  }

  bool check(bool good, const Field& field, std::size_t column, int line) {
    if (good) return true;
    diagnostics_.error({line, field.column, std::max(1, static_cast<int>(field.word.size()))},
                       fmt::format("{} '{}' is not a {}", kColumns[column], field.word,
                                   column == 0 ? "whole number" : "finite number"));
    return false;
  }

  std::string_view text_;
  Diagnostics diagnostics_;
  std::vector<EpisodeLog> episodes_;
};

}  // namespace

Result<std::vector<EpisodeLog>> parse_search_log(std::string_view text, std::string_view file) {
  return Reader(text, file).read();
}

}  // namespace agpcs
