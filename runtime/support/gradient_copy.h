// SPDX-License-Identifier: Apache-2.0
// Copies gradients into the memory that is reduced, and back.
#pragma once

#include <agpcs/buffer.h>
#include <agpcs/types.h>

#include <cstddef>

namespace agpcs {

/// `copy_in` copies from the buffer to the memory, `copy_out` back. `wire` is the type of the
/// memory: `buffer.type`, or fp16 or bf16 if the buffer is fp32. Values are multiplied by `scale`
/// before they are rounded; for integers it must be 1. `memory` may be the buffer itself if the
/// types are equal. Cost: one pass.
void copy_in(void* memory, DType wire, const Buffer& buffer, double scale);
void copy_out(const Buffer& buffer, const void* memory, DType wire, double scale);

}  // namespace agpcs
