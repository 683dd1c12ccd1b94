// SPDX-License-Identifier: Apache-2.0
// Takes rows of a constant along an axis.
#pragma once

#include "ir/graph/graph.h"

#include <cstddef>
#include <cstdint>

namespace agpcs::frontend {

/// Keeps the first `count` rows of a tensor along `axis`, and their bytes if it has any.
void keep_rows(Tensor& tensor, std::size_t axis, std::int64_t count);

}  // namespace agpcs::frontend
