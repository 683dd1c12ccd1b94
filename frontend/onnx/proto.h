// SPDX-License-Identifier: Apache-2.0
// Includes ONNX's messages and calls their namespace `onnx`.
//
// ONNX's library is built in a namespace of its own (tools/onnx/onnx.sh): LibTorch may load another
// release of the library, which has the usual namespace, into the same process.
#pragma once

#include <onnx/onnx_pb.h>

namespace agpcs {

namespace onnx = ::ONNX_NAMESPACE;

}  // namespace agpcs
