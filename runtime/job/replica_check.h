// SPDX-License-Identifier: Apache-2.0
// Checks that the replicas of a stage hold equal parameters.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>

namespace agpcs {

/// Compares, between two steps, the checksums of parameters and of what the optimizer remembers of
/// them, unless replicas divide it; replicas of a stage must hold the same to the last bit. All
/// ranks call it. An error names a rank that differs from the first rank of its stage, and both
/// checksums; the transport is aborted. If an executor has no readable state, nothing is compared.
/// Cost: one pass over the parameters, and 8 bytes a rank.
Status check_replicas(const Plan& plan, int rank, const Executor& executor, Transport& transport,
                      std::int64_t step, std::chrono::milliseconds limit);

}  // namespace agpcs
