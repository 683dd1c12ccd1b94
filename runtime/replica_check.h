// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>

namespace agpcs {

/// Replicas of a stage hold the same parameters, and what the optimizer remembers of them, to the
/// last bit: compares their checksums between two steps. All ranks call it. An error names a rank
/// that differs from the first of its stage, and both checksums; the transport is aborted. Nothing
/// is compared where an executor has no state to read. Cost: one pass over the parameters, and 8
/// bytes a rank.
Status check_replicas(const Plan& plan, int rank, const Executor& executor, Transport& transport,
                      std::int64_t step, std::chrono::milliseconds limit);

}  // namespace agpcs
