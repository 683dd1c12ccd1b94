// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/types.h>

#include <cstddef>

namespace agpcs {

/// Returns whether `add_into` knows `type`: fp64, fp32, fp16, bf16, int64, int32.
bool can_sum(DType type);

/// Computes to[i] += from[i] for `elements` elements. fp16 and bf16 are added in float and rounded
/// once. Needs: can_sum(type); the ranges do not overlap.
void add_into(void* to, const void* from, std::size_t elements, DType type);

}  // namespace agpcs
