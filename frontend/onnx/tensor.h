// SPDX-License-Identifier: Apache-2.0
// Reads ONNX tensors: element types, inline values, and external data with its location checked.
#pragma once

#include "frontend/onnx/proto.h"
#include "ir/graph/graph.h"

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs::frontend {

/// Returns the element type, or nullopt for a type that a graph cannot hold (strings, complex,
/// unsigned 16 to 64 bits, 8-bit floats).
std::optional<DType> dtype_of(int onnx_type);
/// Returns "float16", "uint32", ...; "type 23" for a type that ONNX's library does not know.
std::string onnx_type_name(int onnx_type);

/// The kind of a file of external data in messages, for `InputFile::open`.
inline constexpr std::string_view kExternalDataNoun = "file of weights";

bool is_external(const onnx::TensorProto& tensor);

/// Returns the elements of an inline tensor, row-major, little-endian.
/// Errors (without file and tensor name): an unsupported type, bytes that disagree with the dims.
Result<std::vector<std::byte>> inline_bytes(const onnx::TensorProto& tensor);

/// Returns where an external tensor lies. The location must stay inside the model's folder: it is
/// relative, has no "..", and no symbolic link on the way leads out. Links are checked as far as
/// the file exists; with `folder` "" only the text is checked. The file is not read.
Result<ExternalData> external_data_of(const onnx::TensorProto& tensor, const std::string& folder);

/// Reads `data` from `folder`. Returns nullopt if the file does not exist. Errors: the file is too
/// short, or is not a regular file but a device or a pipe.
Result<std::optional<std::vector<std::byte>>> read_external(const ExternalData& data,
                                                            const std::string& folder);

}  // namespace agpcs::frontend
