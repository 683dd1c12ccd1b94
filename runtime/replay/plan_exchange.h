// SPDX-License-Identifier: Apache-2.0
// Small agreements between the ranks of a running job, between two steps. All ranks call each of
// these functions at the same time.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace agpcs {

/// Sends rank 0's `text` of `bytes` bytes to all ranks. The others may pass any text.
Result<std::string> share_text(const std::string& text, std::int64_t bytes, Transport& transport,
                               std::chrono::milliseconds limit);

/// Returns the sum of `value` over all ranks, over group `world`.
Result<std::int64_t> sum_over_ranks(std::int64_t value, int world, Transport& transport,
                                    std::chrono::milliseconds limit);

/// Returns the text of the lowest rank whose `mine` is not empty, cut after 4 KiB, or an empty
/// string if there is no such rank. All ranks get the same text.
Result<std::string> first_to_say(std::string mine, int world, Transport& transport,
                                 std::chrono::milliseconds limit);

/// Returns why a job cannot go from `running` to `next` on the same ranks, or an empty string if
/// it can.
std::string obstacle_to_switch(const Plan& running, const Plan& next);

}  // namespace agpcs
