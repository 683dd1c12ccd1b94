// SPDX-License-Identifier: Apache-2.0
// Bytes of ONNX tensors: element types, inline values, and external data with its location checked.
#pragma once

#include "ir/graph.h"

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs::frontend {

/// Nullopt: a type that a graph cannot hold (strings, complex, unsigned 16 to 64 bits, 8-bit
/// floats).
std::optional<DType> dtype_of(int onnx_type);
/// "float16", "uint32", ...; "type 23" for one that ONNX's library does not know.
std::string onnx_type_name(int onnx_type);

/// What a file of external data should be, for `InputFile::open`.
inline constexpr std::string_view kExternalDataNoun = "file of weights";

bool is_external(const onnx::TensorProto& tensor);

/// Elements of an inline tensor, row-major, little-endian.
/// Errors (without file and tensor name): no such type here, bytes and dims disagree.
Result<std::vector<std::byte>> inline_bytes(const onnx::TensorProto& tensor);

/// Where an external tensor lies. The location must stay inside the model's folder: relative,
/// without "..", and no symbolic link on the way may lead out (checked as far as the file exists;
/// `folder` "" checks the text alone). The file is not read.
Result<ExternalData> external_data_of(const onnx::TensorProto& tensor, const std::string& folder);

/// Reads `data` from `folder`. Nullopt when there is no such file; an error when it is too short,
/// or no file: a device, a pipe.
Result<std::optional<std::vector<std::byte>>> read_external(const ExternalData& data,
                                                            const std::string& folder);

}  // namespace agpcs::frontend
