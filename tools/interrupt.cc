// SPDX-License-Identifier: Apache-2.0
#include "tools/interrupt.h"

#include <cstdint>
#include <ctime>

namespace agpcs {
namespace {

// Launchers and timeout(1) may send one request twice, to a process and to its group.
constexpr std::int64_t kSameRequest = 200'000'000;  // nanoseconds

// A signal handler reaches nothing else.
std::atomic<bool> interrupted{false};
std::atomic<std::int64_t> interrupted_at{0};
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // may be called by a handler
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int signal) {
  const std::int64_t now = nanoseconds();
  if (!interrupted.exchange(true)) {
    interrupted_at.store(now);
    return;
  }
  if (now - interrupted_at.load() < kSameRequest) return;
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  raise(signal);  // takes effect when this returns
}

}  // namespace

InterruptFlag::InterruptFlag(std::initializer_list<int> signals) : signals_(signals) {
  interrupted.store(false);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : signals_) sigaction(signal, &action, nullptr);
}

InterruptFlag::~InterruptFlag() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (const int signal : signals_) sigaction(signal, &action, nullptr);
}

const std::atomic<bool>& InterruptFlag::flag() const { return interrupted; }

}  // namespace agpcs
