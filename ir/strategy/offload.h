// SPDX-License-Identifier: Apache-2.0
// The optimizer's state in the memory of hosts: what devices hold of it, and how long updates take.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/strategy.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/training.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// The most elements whose state travels at a time.
inline constexpr std::int64_t kOffloadPiece = std::int64_t{1} << 20;
/// The pieces that a device holds: one that comes in, one that is updated, one that goes out.
inline constexpr std::int64_t kOffloadWindow = 3;

/// Moves a stage's optimizer state to the host: the device keeps the window alone.
void move_state_to_host(const Training& training, StageMemory& memory);

/// Returns the seconds of an update of `elements` elements that takes `update` seconds by itself,
/// where their state of `bytes` bytes each comes from the host and goes back there. All pieces are
/// of one size. Copies in both directions and the updates run at the same time, piece by piece; a
/// piece comes in when the third before it has gone out.
/// Needs: `link.given()`.
double offloaded_seconds(double update, std::int64_t elements, std::int64_t bytes,
                         const HostLink& link);

/// Returns whether the optimizer has state, and some device a link to a host with memory for it.
bool can_offload(const Cluster& cluster, const Training& training);
/// Returns why the state of stage `stage` cannot be in the memory of hosts: "device a/0 has no
/// host_link". Empty: it can, if the optimizer has some.
std::string why_not_offload(const Strategy& strategy, std::size_t stage, const Cluster& cluster);
/// Checks that stages which have it there can. Error: kInternal.
Status check_offload(const Strategy& strategy, const Cluster& cluster);
/// Lets all stages that cannot have their state there keep it on their devices.
void fit_offload(Strategy& strategy, const Cluster& cluster);

/// Checks that each rank whose state is in the memory of its host has a link to it, and that the
/// memory of each host is enough for what its ranks keep there: `uses`, by rank. Errors:
/// kInvalidInput, kInfeasible.
Status check_host_memory(const Plan& plan, const std::vector<MemoryUse>& uses,
                         const Cluster& cluster);

}  // namespace agpcs
