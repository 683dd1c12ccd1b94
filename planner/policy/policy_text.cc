// SPDX-License-Identifier: Apache-2.0
#include "planner/policy/policy_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>

namespace agpcs {
namespace {

constexpr int kMostUnits = 4096;
constexpr char kTrainOne[] = "train one with this version: agpcs-train-policy";

std::string row(std::string_view key, std::span<const float> numbers) {
  return fmt::format("{} {}\n", key, fmt::join(numbers, " "));
}

}  // namespace

std::string print_perceptron(const Perceptron& network) {
  const std::size_t features = network.mean.size();
  std::string text = fmt::format("features {}\nunits {}\n", features, network.units());
  text += row("mean", network.mean) + row("scale", network.scale);
  for (std::size_t unit = 0; unit < network.bias.size(); ++unit) {
    text += row("hidden", std::span(network.hidden).subspan(unit * features, features));
  }
  text += row("bias", network.bias) + row("output", network.output);
  return text + fmt::format("output-bias {}\n", network.output_bias);
}

PolicyReader::PolicyReader(std::string_view text, std::string_view file)
    : text_(text), diagnostics_(std::string(file), std::string(text)) {}

bool PolicyReader::fail(std::string message, std::string hint) {
  const int length = std::max<int>(1, static_cast<int>(std::min<std::size_t>(line_.size(), 80)));
  diagnostics_.error({number_, 1, length}, std::move(message), std::move(hint));
  failed_ = true;
  return false;
}

/// Goes to the next line, which begins with `key` and a space; the rest goes to `rest_`.
bool PolicyReader::next(std::string_view key) {
  if (failed_) return false;
  ++number_;
  const std::size_t end = text_.find('\n', at_);
  line_ = end == std::string_view::npos ? std::string_view() : text_.substr(at_, end - at_);
  if (end == std::string_view::npos) {
    return fail(fmt::format("the policy ends where '{}' is expected", key),
                at_ < text_.size() ? "its last line does not end" : "the file is cut off");
  }
  at_ = end + 1;
  const std::string_view word = line_.substr(0, line_.find(' '));
  rest_ = line_.substr(std::min(line_.size(), word.size() + 1));
  if (word == key) return true;
  return fail(fmt::format("'{}' where '{}' is expected", word.substr(0, 40), key),
              number_ == 1 ? "no policy of AGPCS, see docs/design/policy.md" : "");
}

bool PolicyReader::read_integer(std::string_view key, int least, int most, int& value) {
  if (!next(key)) return false;
  const char* const end = rest_.data() + rest_.size();
  const auto [rest, error] = std::from_chars(rest_.data(), end, value);
  if (error == std::errc() && rest == end && value >= least && value <= most) return true;
  return fail(fmt::format("'{}' is no number from {} to {}", rest_.substr(0, 40), least, most));
}

bool PolicyReader::read_row(std::string_view key, std::size_t count, std::vector<float>& numbers) {
  if (!next(key)) return false;
  std::size_t read = 0;
  while (!rest_.empty()) {
    const std::string_view word = rest_.substr(0, rest_.find(' '));
    rest_ = rest_.substr(std::min(rest_.size(), word.size() + 1));
    float value = 0;
    const char* const end = word.data() + word.size();
    const auto [rest, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc() || rest != end || !std::isfinite(value)) {
      return fail(
          fmt::format("'{}' is no number (number {} of '{}')", word.substr(0, 40), read + 1, key));
    }
    numbers.push_back(value);
    ++read;
  }
  if (read == count) return true;
  return fail(fmt::format("'{}' has {} numbers where {} are expected", key, read, count));
}

bool PolicyReader::read_head(std::string_view magic, int version, std::string& made_by) {
  int given = 0;
  if (!read_integer(magic, 0, 1'000'000, given)) return false;
  if (given != version) {
    return fail(fmt::format("version {} of the policy format, this AGPCS reads {}", given, version),
                kTrainOne);
  }
  if (!next("made-by")) return false;
  made_by = rest_;
  return true;
}

bool PolicyReader::read_word(std::string_view key, std::string_view word) {
  if (!next(key)) return false;
  if (rest_ == word) return true;
  return fail(fmt::format("'{}' where '{}' is expected", rest_.substr(0, 40), word));
}

bool PolicyReader::read_perceptron(int features, std::string_view judged, Perceptron& network) {
  int given = 0, units = 0;
  if (!read_integer("features", 0, 1'000'000, given)) return false;
  if (given != features) {
    return fail(fmt::format("the policy judges {} by {} features, this AGPCS describes them by {}",
                            judged, given, features),
                kTrainOne);
  }
  if (!read_integer("units", 1, kMostUnits, units)) return false;
  return read_rows(static_cast<std::size_t>(features), static_cast<std::size_t>(units), network);
}

bool PolicyReader::read_rows(std::size_t features, std::size_t units, Perceptron& network) {
  network = {};
  if (!read_row("mean", features, network.mean)) return false;
  if (!read_row("scale", features, network.scale)) return false;
  for (std::size_t unit = 0; unit < units; ++unit) {
    if (!read_row("hidden", features, network.hidden)) return false;
  }
  std::vector<float> output_bias;
  if (!read_row("bias", units, network.bias) || !read_row("output", units, network.output) ||
      !read_row("output-bias", 1, output_bias)) {
    return false;
  }
  network.output_bias = output_bias.front();
  return true;
}

bool PolicyReader::read_end(std::string_view last) {
  if (failed_) return false;
  if (at_ == text_.size()) return true;
  ++number_;
  line_ = {};
  return fail(fmt::format("more lines after '{}'", last));
}

}  // namespace agpcs
