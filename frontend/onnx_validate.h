// SPDX-License-Identifier: Apache-2.0
// Checks of operators' inputs that ONNX's shape rules leave out.
#pragma once

#include "frontend/onnx_dense.h"
#include "frontend/onnx_infer.h"

#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

namespace agpcs::frontend {

/// What does not fit, or "": channels of a convolution, the inner extent of Gemm, the number of
/// elements of Reshape, the batch of a recurrent operator's states.
std::string check_fit(const onnx::NodeProto& node, const std::vector<const Dense*>& inputs,
                      const std::vector<InferredOutput>& outputs);

/// "fp32[n,3,224,224]", and "int64[2] {1009,-1}" with the elements at `probe` where they are few.
std::string probed_text(const Probed& value, std::size_t probe);

}  // namespace agpcs::frontend
