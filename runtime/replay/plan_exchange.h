// SPDX-License-Identifier: Apache-2.0
// Small agreements between the ranks of a running job, between two steps. All ranks call each of
// these at the same time.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace agpcs {

/// Rank 0's `text` of `bytes` bytes goes to all ranks, which pass anything.
Result<std::string> share_text(const std::string& text, std::int64_t bytes, Transport& transport,
                               std::chrono::milliseconds limit);

/// The sum over all ranks of `value`, over group `world`.
Result<std::int64_t> sum_over_ranks(std::int64_t value, int world, Transport& transport,
                                    std::chrono::milliseconds limit);

/// What the lowest rank with something to say says, cut after 4 KiB; empty when none has. All ranks
/// get the same.
Result<std::string> first_to_say(std::string mine, int world, Transport& transport,
                                 std::chrono::milliseconds limit);

/// Why a job cannot go from `running` to `next` on the same ranks; empty when it can.
std::string obstacle_to_switch(const Plan& running, const Plan& next);

}  // namespace agpcs
