// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap/refusals.h"

#include <fmt/format.h>

namespace agpcs {
namespace {

constexpr std::size_t kMostAddresses = 1024;

}  // namespace

Refusals::~Refusals() {
  if (count_ == told_) return;
  const bool more = of_address_.count("") > 0;
  const std::size_t addresses = of_address_.size() - (more ? 1 : 0);
  say(fmt::format("refused {} connections that did not prove the job token, from {}{} address{}",
                  count_, more ? "more than " : "", addresses, addresses == 1 ? "" : "es"));
}

void Refusals::add(const std::string& address, std::string_view why, Clock::time_point now) {
  ++count_;
  const bool known = of_address_.count(address) > 0;
  ++of_address_[known || of_address_.size() < kMostAddresses ? address : std::string()];
  if (now - minute_ >= std::chrono::minutes(1)) {
    minute_ = now;
    lines_ = 0;
  }
  if (known || lines_ >= kLinesAMinute) return;
  ++lines_;
  ++told_;
  say(fmt::format("refused a connection from {}: {}", address, why));
}

void Refusals::say(const std::string& line) {
  if (say_) say_(line);
}

}  // namespace agpcs
