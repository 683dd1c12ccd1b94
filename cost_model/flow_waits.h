// SPDX-License-Identifier: Apache-2.0
// Which servers wait for which, so that messages that share a link take turns on it.
#pragma once

#include "cost_model/flow_schedule.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Server `to` begins `round` when server `from` is through with all rounds before it.
struct RoundWait {
  std::int32_t round = 0;
  int from = 0, to = 0;
  friend auto operator<=>(const RoundWait&, const RoundWait&) = default;
};

/// What servers that go through rounds one after the other (FlowOrder::kRounds) must still wait
/// for, so that no message moves while one of an earlier round is on a link of its way: the
/// receivers of those messages, where neither end knows by what it received, sent or waited for
/// that they have come. Sorted, no two alike. Needs: a schedule that is valid, and normalized.
/// Cost: O(servers x (workloads + rounds x servers)), and for each crossing of a link the messages
/// that crossed it in the round before; memory: servers^2.
std::vector<RoundWait> link_waits(const FlowSchedule& schedule);

}  // namespace agpcs
