// SPDX-License-Identifier: Apache-2.0
// A model that was exported for a fixed batch: where the batch is in the target of a Reshape.
#pragma once

#include "frontend/onnx_dense.h"
#include "ir/graph.h"

#include <optional>

namespace agpcs::frontend {

/// The target of a Reshape, written for `fixed_batch` samples, for any number of them: the entry
/// that holds the batch is scaled. `data` is the shape of the tensor, which depends on the batch.
///
/// The batch is where the elements before and after it are as many as in `data`. An axis that
/// was joined with the batch before ([12 n]) may hold it outside or inside; an entry of exactly
/// `fixed_batch` decides.
/// Nullopt: the target follows the batch already (-1 or 0 stands there), or it cannot be told where
/// the batch is.
std::optional<Shape> rebind_target(const Shape& data, const Dims& target, std::int64_t fixed_batch);

}  // namespace agpcs::frontend
