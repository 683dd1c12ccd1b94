// SPDX-License-Identifier: Apache-2.0
// Saves a trained model as an ONNX file: the user's model, with its weights in a file beside it.
#pragma once

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// A trained tensor, named as the imported graph names it.
struct TrainedTensor {
  std::string name;
  DType type = DType::kFp32;
  std::vector<std::int64_t> dims;
};

/// A tensor's place in the file of weights. The tensor is trained, or copied from another file.
struct SavedTensor {
  std::string name;  ///< name of a trained tensor, or of one to copy
  DType type = DType::kFp32;
  std::int64_t offset = 0, bytes = 0;
  std::string source;  ///< file to copy the bytes from; empty if the tensor is trained
  std::int64_t source_offset = 0;
};

struct SavedModel {
  std::string model;                 ///< the bytes of the .onnx file
  std::vector<SavedTensor> tensors;  ///< by offset; trained tensors come first, by name
};

/// Lays out the model at `path` (.onnx or .onnxtxt) with its trained tensors in `data_file`, a file
/// in the same folder.
/// * Initializers keep their names.
/// * A Constant or ConstantOfShape that fed a weight is replaced by an initializer of that name.
///   Its shape is removed too, if it is a Constant without other uses.
/// * A trained tensor of a function inlines the functions; one of a body of control flow moves,
/// with
///   what else bodies store, to the main graph.
/// * Other tensors whose values were in a file of the original also move to `data_file`.
/// * Everything else stays as it was.
///
/// This function does not look at the weights' values. The caller writes them to the places in
/// `tensors`, one after the other, so that models of any size can be saved in little memory.
/// Tensors of 4 KiB or more begin at a multiple of 4 KiB, so that they can be mapped; others begin
/// at a multiple of 64 bytes.
///
/// Errors: those of reading a model; a trained tensor that is not in the model, or has another type
/// or other dims; a value whose file is missing.
Result<SavedModel> lay_out_model(const std::string& path, std::vector<TrainedTensor> trained,
                                 const std::string& data_file);

}  // namespace agpcs
