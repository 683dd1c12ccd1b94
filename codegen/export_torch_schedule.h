// SPDX-License-Identifier: Apache-2.0
// The order of a pipeline's passes as a schedule of PyTorch.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>

namespace agpcs {

/// Prints the passes of the plan as PyTorch's pipeline runtime reads them from a CSV file
/// (torch.distributed.pipelining.schedules._PipelineScheduleRuntime._load_csv, "compute_only"): a
/// line for each rank, with `2F0` for the forward pass of micro-batch 0 in stage 2, and `2B0` for
/// its backward pass, in the order of the rank's program. PyTorch adds the transfers. Errors: those
/// of `check_pipeline`, for what its runtime does not know.
Result<std::string> torch_schedule_csv(const Plan& plan);

/// Prints the same of a plan that another program can run. Needs: each stage has one rank.
std::string schedule_lines(const Plan& plan);

}  // namespace agpcs
