// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>

namespace agpcs {

/// Returns Ok if `rank` may replay `plan` over `transport`. kInvalidInput: the plan does not verify
/// or is for another number of ranks, or the transport is another rank's.
Status check_fit(const Plan& plan, int rank, const Transport& transport);

/// Opens the group of all ranks and compares the plan's digest over them in one all-reduce.
/// kInvalidInput names a rank that holds another plan, and both digests.
Status agree_on_plan(const Plan& plan, Transport& transport, std::chrono::milliseconds limit);

/// Prepares the executor for the plan, and finds out here, not in a step, that it cannot update a
/// part of its parameters where the plan divides state.
Status prepare_executor(const Plan& plan, int rank, Executor& executor);

}  // namespace agpcs
