// SPDX-License-Identifier: Apache-2.0
#include "tools/interrupt.h"

namespace agpcs {
namespace {

// A signal handler reaches nothing else.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void set_flag(int /*signal*/) { interrupted.store(true); }

}  // namespace

InterruptFlag::InterruptFlag(std::initializer_list<int> signals) : signals_(signals) {
  interrupted.store(false);
  struct sigaction action = {};
  action.sa_handler = set_flag;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : signals_) sigaction(signal, &action, nullptr);
}

InterruptFlag::~InterruptFlag() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (const int signal : signals_) sigaction(signal, &action, nullptr);
}

const std::atomic<bool>& InterruptFlag::flag() const { return interrupted; }

}  // namespace agpcs
