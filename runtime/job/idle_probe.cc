// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/idle_probe.h"

#include "runtime/support/operation_times.h"

#include <chrono>
#include <system_error>

namespace agpcs {
namespace {

constexpr std::int64_t kRest = 2;  // times what the last probe took

}  // namespace

std::optional<double> IdleProbe::take(double seconds) {
  std::optional<double> taken;
  if (running_.valid()) {
    if (running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return taken;
    const Outcome outcome = running_.get();
    taken = outcome.seconds;
    next_ = outcome.end + kRest * (outcome.end - outcome.begin);
  }
  if (steady_nanoseconds() < next_) return taken;
  try {
    running_ = std::async(std::launch::async, [&executor = executor_, seconds] {
      Outcome outcome;
      outcome.begin = steady_nanoseconds();
      outcome.seconds = executor.probe(seconds);
      outcome.end = steady_nanoseconds();
      return outcome;
    });
  } catch (const std::system_error&) {  // no thread can be had now
  }
  return taken;
}

}  // namespace agpcs
