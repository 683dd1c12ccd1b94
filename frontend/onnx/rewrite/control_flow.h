// SPDX-License-Identifier: Apache-2.0
// Replaces If, Loop and Scan by the nodes that run.
#pragma once

#include "frontend/onnx/import_onnx.h"
#include "frontend/onnx/proto.h"

#include <agpcs/status.h>

#include <cstdint>
#include <string>

namespace agpcs::frontend {

/// Control flow may expand to so many nodes, or to so many units of kExpandedBytes of them. A
/// fuzzer, whose sanitizers make each node take 15 times as long, meets a lower bound.
#ifdef AGPCS_FUZZ
inline constexpr std::int64_t kMostExpandedNodes = std::int64_t{1} << 12;
#else
inline constexpr std::int64_t kMostExpandedNodes = std::int64_t{1} << 16;
#endif
inline constexpr std::int64_t kExpandedBytes = 4096;

/// Replaces each If by the branch that its condition takes, and each Loop and Scan by its body,
/// once for each iteration. Names of an iteration's values get its number: "h/3". Initializers and
/// Constants of a body are there once, whatever the number of iterations. Nested control flow is
/// replaced, too. Conditions, numbers of iterations and scanned lengths must be constants that the
/// file alone tells: they may be computed from shapes and from the number of the iteration, but not
/// from the number of samples, from data or from weights. A model without control flow stays as it
/// is. Needs: functions are inlined. `file` is named in errors.
/// Errors: the first control flow of each module that cannot be replaced, and how many more; more
/// than kMostExpandedNodes; a body that does not fit its node. Cost: O(nodes after expansion).
Status inline_control_flow(onnx::ModelProto& proto, const std::string& file,
                           const ImportOptions& options);

}  // namespace agpcs::frontend
