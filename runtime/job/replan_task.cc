// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/replan_task.h"

#include "runtime/support/caught.h"

#include <utility>

namespace agpcs {

void ReplanTask::start(const Plan& running, const HardwareReport& hardware) {
  stop();
  cancel_ = false;
  thread_ = std::thread([this, running, hardware] {
    Outcome outcome = caught([&] { return replanner_.replan(running, hardware, cancel_); });
    const std::lock_guard lock(mutex_);
    outcome_ = std::move(outcome);
  });
}

void ReplanTask::stop() {
  cancel_ = true;
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  outcome_.reset();
}

std::optional<ReplanTask::Outcome> ReplanTask::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!outcome_.has_value()) return std::nullopt;
  }
  thread_.join();
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace agpcs
