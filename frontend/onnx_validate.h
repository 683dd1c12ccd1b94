// SPDX-License-Identifier: Apache-2.0
// Checks of operators' inputs that ONNX's shape rules leave out, and a fixed batch in a Reshape.
#pragma once

#include "frontend/onnx_dense.h"
#include "frontend/onnx_infer.h"

#include <onnx/onnx_pb.h>

#include <optional>
#include <string>
#include <vector>

namespace agpcs::frontend {

/// What does not fit, or "": channels of a convolution, the inner extent of Gemm, the number of
/// elements of Reshape.
std::string check_fit(const onnx::NodeProto& node, const std::vector<const Dense*>& inputs,
                      const std::vector<InferredOutput>& outputs);

/// The target of a Reshape that was written for `fixed_batch` samples, for `samples` of them: its
/// entry 0 is scaled. `data` are the dims of the tensor at `samples`. Nullopt: the target needs no
/// change.
std::optional<Dims> rebound_target(const Dims& data, const Dims& target, std::int64_t samples,
                                   std::int64_t fixed_batch);

/// "fp32[n,3,224,224]", and "int64[2] {1009,-1}" with the elements at `probe` where they are few.
std::string probed_text(const Probed& value, std::size_t probe);

}  // namespace agpcs::frontend
