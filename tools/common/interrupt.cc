// SPDX-License-Identifier: Apache-2.0
#include "tools/common/interrupt.h"

#include <ctime>
#include <pthread.h>
#include <unistd.h>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void end_process_by(int signal) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  sigset_t unblocked;
  sigemptyset(&unblocked);
  sigaddset(&unblocked, signal);
  pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
  raise(signal);
  _exit(128 + signal);
}

}  // namespace

bool is_ignored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

bool asks_again(int signal, Clock::duration after) {
  constexpr std::chrono::milliseconds kSameRequest{200};
  return signal != SIGHUP && after >= kSameRequest;
}

InterruptFlag::InterruptFlag(std::initializer_list<int> signals, Arm arm)
    : armed_(arm == Arm::kNow), any_(*signals.begin()) {
  sigemptyset(&signals_);
  sigemptyset(&ignored_);
  for (const int signal : signals) {
    sigaddset(&signals_, signal);
    // An ignored signal is queued, too, while it is blocked.
    if (is_ignored(signal)) sigaddset(&ignored_, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals_, &old_mask_);
  thread_ = std::thread(&InterruptFlag::watch, this);
}

InterruptFlag::~InterruptFlag() {
  ends_ = true;
  pthread_kill(thread_.native_handle(), any_);
  thread_.join();
  const timespec at_once{};
  // Drop repetitions of the same request.
  while (flag_ && sigtimedwait(&signals_, nullptr, &at_once) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void InterruptFlag::watch() {
  for (int signal = 0; sigwait(&signals_, &signal) == 0 && !ends_;) {
    if (sigismember(&ignored_, signal) == 0) take(signal);
  }
}

void InterruptFlag::take(int signal) {
  if (!armed_) end_process_by(signal);
  if (!flag_.exchange(true)) {
    taken_at_ = Clock::now();
  } else if (asks_again(signal, Clock::now() - taken_at_)) {
    end_process_by(signal);
  }
}

}  // namespace agpcs
