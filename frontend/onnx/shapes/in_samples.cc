// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/in_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace agpcs::frontend {
namespace {

/// A message, cut into texts and the numbers between them.
struct Cut {
  std::vector<std::string> texts;  ///< one more than `numbers`
  std::vector<std::int64_t> numbers;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

Cut cut(std::string_view message) {
  Cut parts;
  parts.texts.emplace_back();
  for (std::size_t at = 0; at < message.size();) {
    std::int64_t number = 0;
    const char* begin = message.data() + at;
    const auto [end, error] = std::from_chars(begin, message.data() + message.size(), number);
    if (is_digit(message[at]) && error == std::errc()) {
      parts.numbers.push_back(number);
      parts.texts.emplace_back();
      at += static_cast<std::size_t>(end - begin);
    } else {
      parts.texts.back() += message[at++];
    }
  }
  return parts;
}

std::string joined(const std::vector<std::string>& texts, const std::vector<std::string>& numbers) {
  std::string message = texts.front();
  for (std::size_t i = 0; i < numbers.size(); ++i) message += numbers[i] + texts[i + 1];
  return message;
}

std::string in_one_probe(const std::string& message, std::int64_t samples) {
  const Cut parts = cut(message);
  std::vector<std::string> numbers;
  for (const std::int64_t number : parts.numbers) {
    const bool multiple = number != 0 && number % samples == 0;
    numbers.push_back(multiple ? extent_text({0, number / samples}) : fmt::to_string(number));
  }
  return joined(parts.texts, numbers);
}

}  // namespace

std::string extent_text(const Extent& extent) {
  if (extent.per_sample == 0) return fmt::to_string(extent.fixed);
  std::string text = extent.per_sample == 1 ? "n" : fmt::format("{}n", extent.per_sample);
  if (extent.fixed != 0) text += fmt::format("{:+}", extent.fixed);
  return text;
}

std::string in_samples(const std::array<std::string, kProbeCount>& messages, std::size_t probe) {
  const std::array<Cut, kProbeCount> parts = {cut(messages[0]), cut(messages[1]), cut(messages[2])};
  if (parts[0].texts != parts[1].texts || parts[0].texts != parts[2].texts) {
    return in_one_probe(messages[probe], kProbes[probe]);
  }
  std::vector<std::string> numbers;
  for (std::size_t i = 0; i < parts[0].numbers.size(); ++i) {
    const std::optional<Extent> extent =
        fit_extent({parts[0].numbers[i], parts[1].numbers[i], parts[2].numbers[i]});
    if (!extent) return in_one_probe(messages[probe], kProbes[probe]);
    numbers.push_back(extent_text(*extent));
  }
  return joined(parts[0].texts, numbers);
}

}  // namespace agpcs::frontend
