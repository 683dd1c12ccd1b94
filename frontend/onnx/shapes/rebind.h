// SPDX-License-Identifier: Apache-2.0
// Rewrites the targets of Reshape in a model that was exported for a fixed batch.
#pragma once

#include "frontend/onnx/dense.h"
#include "ir/graph/graph.h"

#include <optional>

namespace agpcs::frontend {

/// Rewrites the target of a Reshape from `fixed_batch` samples to any number of samples: it scales
/// the entry that holds the batch. `data` is the shape of the tensor, which depends on the batch.
///
/// The entry that holds the batch has as many elements before and after it as the batch has in
/// `data`. If the batch was joined with another axis earlier ([12 n]), that axis may be on either
/// side of the batch. Among several candidates, an entry of exactly `fixed_batch` decides.
/// Returns nullopt if the target follows the batch already (its entry is -1 or 0), or if the entry
/// cannot be determined.
std::optional<Shape> rebind_target(const Shape& data, const Dims& target, std::int64_t fixed_batch);

}  // namespace agpcs::frontend
