// SPDX-License-Identifier: Apache-2.0
// What ranks have learned on its way to a file of rank 0: the moves, and the values in the types
// that files have.
#pragma once

#include "runtime/job/state_moves.h"

#include <agpcs/executor.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns the moves of all items to rank 0: each element once, from its first holder, by tensor,
/// slot and element; of what members of teams divide, one part behind the other. Error: nobody
/// holds an element.
Result<std::vector<StateMove>> gathering(const StateOwners& owners);

/// Returns what `carry_state` calls where `write` is to get whole tensors, in order, although moves
/// bring parts. Of one tensor at a time, it has a chunk in memory.
WriteState writing_wholes(WriteState write);

/// Tells whether the values of `item`, a tensor of `type` with `bytes` bytes, must be converted
/// from fp32. Otherwise they are the tensor's bytes, as words of four bytes.
Result<bool> converts(const StateItem& item, DType type, std::int64_t bytes);

/// Replaces `out` by `count` fp32 values converted to `type`: fp16, bf16 or fp64.
void convert(DType type, const float* values, std::int64_t count, std::vector<char>& out);

}  // namespace agpcs
