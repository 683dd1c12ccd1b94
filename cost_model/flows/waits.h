// SPDX-License-Identifier: Apache-2.0
// Finds which servers must wait for which, so that messages that share a link take turns on it.
#pragma once

#include "cost_model/flows/schedule.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Server `to` begins `round` only when server `from` has finished all rounds before it.
struct RoundWait {
  std::int32_t round = 0;
  int from = 0, to = 0;
  friend auto operator<=>(const RoundWait&, const RoundWait&) = default;
};

/// Returns the waits that servers in the order FlowOrder::kRounds still need, so that no message
/// moves while a message of an earlier round is on a link of its route. The sender of the later
/// message waits for the receiver of the earlier one, unless an end of the later message already
/// knows, by what it received, sent or waited for, that the earlier one has arrived. The result is
/// sorted and without repeats. Needs: a schedule that is valid and normalized. Cost: O(servers x
/// (workloads + rounds x servers)), and for each crossing of a link the messages that crossed it in
/// the round before; memory: servers^2.
std::vector<RoundWait> link_waits(const FlowSchedule& schedule);

}  // namespace agpcs
