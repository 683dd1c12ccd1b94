// SPDX-License-Identifier: Apache-2.0
// Refusals: counts the connections that a listener refused, and tells of them without flooding.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace agpcs {

class Refusals {
 public:
  using Clock = std::chrono::steady_clock;
  /// `say` gets one line for each address, and at most `kLinesAMinute` lines a minute. It may be
  /// empty.
  explicit Refusals(std::function<void(const std::string&)> say) : say_(std::move(say)) {}
  /// Says how many there were, if it has not told of each.
  ~Refusals();
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;

  /// A connection from `address` was refused: "it did not say anything within 5000 ms".
  void add(const std::string& address, std::string_view why, Clock::time_point now);
  std::int64_t count() const { return count_; }

  static constexpr int kLinesAMinute = 10;

 private:
  void say(const std::string& line);

  std::function<void(const std::string&)> say_;
  std::map<std::string, std::int64_t> of_address_;  // at most kMostAddresses, and the rest as ""
  std::int64_t count_ = 0, told_ = 0;
  Clock::time_point minute_;
  int lines_ = 0;  // since `minute_`
};

}  // namespace agpcs
