// SPDX-License-Identifier: Apache-2.0
// Gradients on their way into the memory that is reduced, and out of it.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/types.h>

#include <cstddef>

namespace agpcs {

/// Both: `wire` is the type of what is reduced, `buffer.type` itself or, where that is fp32, fp16
/// or bf16; values are multiplied by `scale` before they are rounded (integers: it is 1). One pass.
/// `memory` may be where the buffer lies if the types are equal.
void copy_in(void* memory, DType wire, const Buffer& buffer, double scale);
void copy_out(const Buffer& buffer, const void* memory, DType wire, double scale);

}  // namespace agpcs
