// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>

namespace agpcs {
namespace {

/// The most ranks that a list in a plan may name, so that a wrong digit is refused and does not
/// allocate memory.
constexpr std::int64_t kLongestList = 1 << 20;

template <typename Item>
bool has_room(const std::vector<Item>& list, std::int64_t more) {
  return more <= kLongestList - static_cast<std::int64_t>(list.size());
}

bool needs_quotes(std::string_view name) {
  return name.empty() || std::any_of(name.begin(), name.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return byte <= ' ' || byte == 127 || c == '"' || c == '\\' || c == '=' || c == ',';
         });
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

/// Parses a rank, or the number of a device on its host, in the form that plans print: 7, not 07.
std::optional<std::int64_t> parse_index(std::string_view text) {
  const std::optional<std::int64_t> index = parse_integer(text);
  if (!index || *index < 0 || *index > std::numeric_limits<int>::max()) return {};
  return fmt::to_string(*index) == text ? index : std::nullopt;
}

struct Device {
  std::string_view host;
  std::int64_t index = -1;  ///< -1: the name has another form, and belongs to no run
};

Device split_device(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  if (slash == std::string_view::npos || needs_quotes(name)) return {};
  const std::optional<std::int64_t> index = parse_index(name.substr(slash + 1));
  if (!index) return {};
  return {name.substr(0, slash), *index};
}

/// Parses "7" or "3-7".
std::optional<std::pair<std::int64_t, std::int64_t>> parse_run(std::string_view text) {
  const std::size_t dash = text.find('-');
  const std::optional<std::int64_t> first = parse_index(text.substr(0, dash));
  if (!first || dash == std::string_view::npos) {
    return first ? std::optional(std::pair(*first, *first)) : std::nullopt;
  }
  const std::optional<std::int64_t> last = parse_index(text.substr(dash + 1));
  if (!last || *last <= *first) return {};
  return std::pair(*first, *last);
}

void append(std::string& list, const std::string& item) {
  if (!list.empty()) list += ',';
  list += item;
}

}  // namespace

std::string quoted(std::string_view name) {
  if (!needs_quotes(name)) return std::string(name);
  std::string text = "\"";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < ' ' || byte == 127) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text + '"';
}

std::optional<std::string> unquoted(std::string_view token) {
  if (token.empty() || token.front() != '"') {
    return needs_quotes(token) ? std::nullopt : std::optional(std::string(token));
  }
  if (token.size() < 2 || token.back() != '"') return {};
  const std::string_view inner = token.substr(1, token.size() - 2);
  std::string name;
  for (std::size_t i = 0; i < inner.size(); ++i) {
    if (inner[i] == '"') return {};
    if (inner[i] != '\\') {
      name += inner[i];
    } else if (i + 3 < inner.size() && inner[i + 1] == 'x') {
      const int high = hex_digit(inner[i + 2]), low = hex_digit(inner[i + 3]);
      if (high < 0 || low < 0) return {};
      name += static_cast<char>(high * 16 + low);
      i += 3;
    } else if (i + 1 < inner.size()) {
      name += inner[++i];
    } else {
      return {};
    }
  }
  return name;
}

std::vector<std::string_view> split_outside_quotes(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (inside && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      inside = !inside;
    } else if (!inside && text[i] == separator) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string print_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i + 1;
    while (j < ranks.size() && ranks[j] == ranks[j - 1] + 1) ++j;
    append(text,
           j == i + 1 ? fmt::to_string(ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[j - 1]));
    i = j;
  }
  return text;
}

std::optional<std::vector<int>> parse_ranks(std::string_view text) {
  std::vector<int> ranks;
  for (const std::string_view part : split_outside_quotes(text, ',')) {
    const auto run = parse_run(part);
    if (!run || !has_room(ranks, run->second - run->first + 1)) return {};
    for (std::int64_t rank = run->first; rank <= run->second; ++rank) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

std::string print_devices(const std::vector<std::string>& devices) {
  std::string text;
  for (std::size_t i = 0; i < devices.size();) {
    const Device first = split_device(devices[i]);
    std::size_t j = i + 1;
    while (first.index >= 0 && j < devices.size()) {
      const Device next = split_device(devices[j]);
      if (next.host != first.host || next.index != first.index + static_cast<int>(j - i)) break;
      ++j;
    }
    append(text, j == i + 1 ? quoted(devices[i])
                            : fmt::format("{}-{}", devices[i], split_device(devices[j - 1]).index));
    i = j;
  }
  return text;
}

std::optional<std::vector<std::string>> parse_devices(std::string_view text) {
  std::vector<std::string> devices;
  for (const std::string_view part : split_outside_quotes(text, ',')) {
    const std::size_t slash = part.rfind('/');
    const bool bare = !needs_quotes(part) && slash != std::string_view::npos;
    const auto run = bare ? parse_run(part.substr(slash + 1)) : std::nullopt;
    if (!run) {
      const std::optional<std::string> name = unquoted(part);
      if (!name) return {};
      devices.push_back(*name);
      continue;
    }
    if (!has_room(devices, run->second - run->first + 1)) return {};
    for (std::int64_t index = run->first; index <= run->second; ++index) {
      devices.push_back(fmt::format("{}/{}", part.substr(0, slash), index));
    }
  }
  return devices;
}

std::string print_samples(const std::vector<std::int64_t>& samples) {
  std::string text;
  for (std::size_t i = 0; i < samples.size();) {
    std::size_t j = i + 1;
    while (j < samples.size() && samples[j] == samples[i]) ++j;
    append(text, j == i + 1 ? fmt::to_string(samples[i]) : fmt::format("{}x{}", samples[i], j - i));
    i = j;
  }
  return text;
}

std::optional<std::vector<std::int64_t>> parse_samples(std::string_view text) {
  std::vector<std::int64_t> samples;
  for (const std::string_view part : split_outside_quotes(text, ',')) {
    const std::size_t cross = part.find('x');
    const auto value = parse_integer(part.substr(0, cross));
    const auto count = cross == std::string_view::npos ? std::optional<std::int64_t>(1)
                                                       : parse_integer(part.substr(cross + 1));
    if (!value || !count || *count < 1 || !has_room(samples, *count)) return {};
    samples.insert(samples.end(), static_cast<std::size_t>(*count), *value);
  }
  return samples;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return {};
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

}  // namespace agpcs
