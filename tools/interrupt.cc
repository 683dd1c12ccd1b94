// SPDX-License-Identifier: Apache-2.0
#include "tools/interrupt.h"

#include <ctime>
#include <pthread.h>
#include <unistd.h>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

// Launchers and timeout(1) may send one request twice, to a process and to its group.
constexpr std::chrono::milliseconds kSameRequest{200};

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

InterruptFlag::InterruptFlag(std::initializer_list<int> signals, Arm arm)
    : armed_(arm == Arm::kNow), any_(*signals.begin()) {
  sigemptyset(&signals_);
  for (const int signal : signals) sigaddset(&signals_, signal);
  pthread_sigmask(SIG_BLOCK, &signals_, &old_mask_);
  thread_ = std::thread(&InterruptFlag::watch, this);
}

InterruptFlag::~InterruptFlag() {
  ends_ = true;
  pthread_kill(thread_.native_handle(), any_);
  thread_.join();
  const timespec at_once{};
  while (flag_ && sigtimedwait(&signals_, nullptr, &at_once) > 0) {  // the same request once more
  }
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void InterruptFlag::watch() {
  for (int signal = 0; sigwait(&signals_, &signal) == 0 && !ends_;) take(signal);
}

void InterruptFlag::take(int signal) {
  if (!armed_) end_process_by(signal);
  if (!flag_.exchange(true)) {
    taken_at_ = Clock::now();
  } else if (Clock::now() - taken_at_ >= kSameRequest) {
    end_process_by(signal);
  }
}

}  // namespace agpcs
