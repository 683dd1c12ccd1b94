// SPDX-License-Identifier: Apache-2.0
#include <agpcs/executor.h>

#include <fmt/format.h>

namespace agpcs {
namespace {

Status stateless(const StateItem& item) {
  return internal_error(
      fmt::format("this executor has no state, not {} of '{}'", item.slot, item.tensor));
}

}  // namespace

Status Executor::read_state(const StateItem& item, std::int64_t /*first*/, std::int64_t /*count*/,
                            float* /*out*/) const {
  return stateless(item);
}

Status Executor::write_state(const StateItem& item, std::int64_t /*first*/, std::int64_t /*count*/,
                             const float* /*values*/) {
  return stateless(item);
}

}  // namespace agpcs
