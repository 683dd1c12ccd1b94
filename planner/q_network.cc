// SPDX-License-Identifier: Apache-2.0
#include "planner/q_network.h"

#include "ir/check.h"
#include "ir/diagnostics.h"
#include "planner/default_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <span>

namespace agpcs {
namespace {

constexpr int kVersion = 1;
constexpr int kMostUnits = 4096;
constexpr std::size_t kFeatures = kFeatureCount;

std::string row(std::string_view key, std::span<const float> numbers) {
  return fmt::format("{} {}\n", key, fmt::join(numbers, " "));
}

/// Reads a policy line by line. The first error ends it.
class PolicyReader {
 public:
  PolicyReader(std::string_view text, std::string_view file)
      : text_(text), diagnostics_(std::string(file), std::string(text)) {}

  Result<QNetwork> read() {
    QNetwork network;
    if (read_head(network) && read_rows(network)) read_end();
    if (!diagnostics_.ok()) return diagnostics_.status();
    return network;
  }

 private:
  bool fail(std::string message, std::string hint = {}) {
    const int length = std::max<int>(1, static_cast<int>(std::min<std::size_t>(line_.size(), 80)));
    diagnostics_.error({number_, 1, length}, std::move(message), std::move(hint));
    return false;
  }

  /// Goes to the next line, which begins with `key` and a space; what follows is in `rest_`.
  bool next(std::string_view key) {
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
                number_ == 1 ? "no policy of AGPCS, see docs/policy.md" : "");
  }

  bool read_integer(std::string_view key, int least, int most, int& value) {
    if (!next(key)) return false;
    const char* const end = rest_.data() + rest_.size();
    const auto [rest, error] = std::from_chars(rest_.data(), end, value);
    if (error == std::errc() && rest == end && value >= least && value <= most) return true;
    return fail(fmt::format("'{}' is no number from {} to {}", rest_.substr(0, 40), least, most));
  }

  bool read_row(std::string_view key, std::size_t count, std::vector<float>& numbers) {
    if (!next(key)) return false;
    std::size_t read = 0;
    while (!rest_.empty()) {
      const std::string_view word = rest_.substr(0, rest_.find(' '));
      rest_ = rest_.substr(std::min(rest_.size(), word.size() + 1));
      float value = 0;
      const char* const end = word.data() + word.size();
      const auto [rest, error] = std::from_chars(word.data(), end, value);
      if (error != std::errc() || rest != end || !std::isfinite(value)) {
        return fail(fmt::format("'{}' is no number (number {} of '{}')", word.substr(0, 40),
                                read + 1, key));
      }
      numbers.push_back(value);
      ++read;
    }
    if (read == count) return true;
    return fail(fmt::format("'{}' has {} numbers where {} are expected", key, read, count));
  }

  bool read_head(QNetwork& network) {
    int version = 0, features = 0;
    if (!read_integer("agpcs-policy", 0, 1'000'000, version)) return false;
    if (version != kVersion) {
      return fail(
          fmt::format("version {} of the policy format, this AGPCS reads {}", version, kVersion),
          "train one with this version: agpcs-train-policy");
    }
    if (!next("made-by")) return false;
    network.made_by = rest_;
    if (!read_integer("features", 0, 1'000'000, features)) return false;
    if (features == kFeatureCount) return read_integer("units", 1, kMostUnits, units_);
    return fail(fmt::format("the policy judges moves by {} features, this AGPCS describes them "
                            "by {}",
                            features, kFeatureCount),
                "train one with this version: agpcs-train-policy");
  }

  bool read_rows(QNetwork& network) {
    const auto units = static_cast<std::size_t>(units_);
    if (!read_row("mean", kFeatures, network.mean)) return false;
    if (!read_row("scale", kFeatures, network.scale)) return false;
    for (int unit = 0; unit < units_; ++unit) {
      if (!read_row("hidden", kFeatures, network.hidden)) return false;
    }
    std::vector<float> output_bias;
    if (!read_row("bias", units, network.bias) || !read_row("output", units, network.output) ||
        !read_row("output-bias", 1, output_bias)) {
      return false;
    }
    network.output_bias = output_bias.front();
    return true;
  }

  void read_end() {
    if (at_ == text_.size()) return;
    ++number_;
    line_ = {};
    fail("more lines after 'output-bias'");
  }

  std::string_view text_, line_, rest_;
  Diagnostics diagnostics_;
  std::size_t at_ = 0;
  int number_ = 0, units_ = 0;
};

}  // namespace

double QNetwork::value(const Features& features) const {
  std::array<double, kFeatures> x;
  for (std::size_t f = 0; f < kFeatures; ++f) {
    x[f] = (double{features[f]} - double{mean[f]}) * double{scale[f]};
  }
  double value = output_bias;
  constexpr std::size_t kTogether = 8;  // sums that do not wait for each other
  for (std::size_t first = 0; first < bias.size(); first += kTogether) {
    const std::size_t count = std::min(kTogether, bias.size() - first);
    const float* const rows = hidden.data() + first * kFeatures;
    std::array<double, kTogether> sums{};
    for (std::size_t u = 0; u < count; ++u) sums[u] = bias[first + u];
    for (std::size_t f = 0; f < kFeatures; ++f) {
      if (x[f] == 0) continue;  // most features are, in most moves
      for (std::size_t u = 0; u < count; ++u) sums[u] += x[f] * double{rows[u * kFeatures + f]};
    }
    for (std::size_t u = 0; u < count; ++u) {
      if (sums[u] > 0) value += sums[u] * double{output[first + u]};
    }
  }
  return value;
}

std::string print_policy(const QNetwork& network) {
  std::string text = fmt::format("agpcs-policy {}\nmade-by {}\nfeatures {}\nunits {}\n", kVersion,
                                 network.made_by, kFeatureCount, network.units());
  text += row("mean", network.mean) + row("scale", network.scale);
  for (std::size_t unit = 0; unit < network.bias.size(); ++unit) {
    text += row("hidden", std::span(network.hidden).subspan(unit * kFeatures, kFeatures));
  }
  text += row("bias", network.bias) + row("output", network.output);
  return text + fmt::format("output-bias {}\n", network.output_bias);
}

Result<QNetwork> parse_policy(std::string_view text, std::string_view file) {
  return PolicyReader(text, file).read();
}

const QNetwork& shipped_policy() {
  static const QNetwork kPolicy = [] {
    Result<QNetwork> policy = parse_policy(default_policy_text(), "default.policy");
    AGPCS_CHECK(policy.ok(), "the shipped policy is wrong: {}", policy.status().message());
    return std::move(*policy);
  }();
  return kPolicy;
}

}  // namespace agpcs
