// SPDX-License-Identifier: Apache-2.0
// What passes post within, where ranks divide gradients or parameters.
#pragma once

#include "ir/strategy/state_parts.h"

#include <agpcs/plan.h>

#include <span>
#include <vector>

namespace agpcs {

/// Returns the gather of the bucket that a pass of a stage needs first. `uses`: where backward
/// passes of the stage need parameters that ranks divide, by buckets of the plan. Needs: there are
/// some.
InstructionId first_gather(const InstructionId& pass, std::span<const BucketUse> uses);

/// Returns what pass `pass` of stage `stage` posts within, in its order. Where it needs a bucket,
/// it posts the gather of the next one, and where it needs its last one, that of pass `next`, if
/// there is one. Where a backward pass has filled a bucket, it posts its sum.
std::vector<Instruction> posted_within(const Plan& plan, int stage, const InstructionId& pass,
                                       const InstructionId* next, std::span<const BucketUse> uses);

}  // namespace agpcs
