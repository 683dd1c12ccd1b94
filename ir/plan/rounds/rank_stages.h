// SPDX-License-Identifier: Apache-2.0
// Queries on plans whose ranks may have several stages each (Schedule::kInterleaved).
#pragma once

#include <agpcs/plan.h>

#include <cstdint>
#include <string>

namespace agpcs {

/// Returns the number of stages that have operators: all but an idle one.
int working_stages(const Plan& plan);
/// Returns how many stages each rank that has stages with operators has: 1, if the schedule is not
/// interleaved.
int stages_of_each_rank(const Plan& plan);
/// Returns whether both stages of a cut have the same ranks, which keep its tensors from the
/// forward pass of the one to the backward pass of the other, and its gradients on the way back: no
/// message carries them. Needs: the cut's stages are of the plan.
bool is_local(const Plan& plan, const Cut& cut);
/// Returns the names of the stages of the ranks of stage `stage`: "s0,s2".
std::string names_of_stages(const Plan& plan, int stage);
/// Returns the pass of the program of stage `stage` during which bucket `bucket` gets its last
/// gradient of a micro-batch: of the one of the program's stages that has the bucket.
InstructionId gradients_pass(const Plan& plan, int stage, int bucket, int micro_batch);
/// Returns how many micro-batches are between their passes at most in stage `stage`.
std::int64_t most_in_flight(const Plan& plan, int stage);
/// Returns the same of that stage of a program which has most.
std::int64_t most_in_flight_of_a_stage(const Plan& plan, const Program& program);

}  // namespace agpcs
