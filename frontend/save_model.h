// SPDX-License-Identifier: Apache-2.0
// A trained model as an ONNX file: the user's model, with its weights in a file beside it.
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

/// A tensor's place in the file of weights.
struct SavedTensor {
  std::string name;  ///< a trained one's; of another one: where its value comes from is below
  DType type = DType::kFp32;
  std::int64_t offset = 0, bytes = 0;
  std::string source;  ///< file to copy the bytes from; empty: it is trained
  std::int64_t source_offset = 0;
};

struct SavedModel {
  std::string model;                 ///< the bytes of the .onnx file
  std::vector<SavedTensor> tensors;  ///< of the file of weights, by offset, trained ones by name
};

/// The model at `path` (.onnx or .onnxtxt) with its trained tensors in `data_file`, a file in the
/// same folder: initializers keep their names, a Constant or ConstantOfShape that fed a weight
/// makes way for an initializer of that name (and its shape, a Constant that has no other use, goes
/// with it), and all else is as it was. Other tensors whose values were in a file of the original
/// move to `data_file`, too. Weights' values are not looked at: whoever saves writes them to where
/// `tensors` says, one after the other, so that models of any size are saved in little memory.
/// Tensors of 4 KiB or more begin at a multiple of 4 KiB (they can be mapped), others at one of 64.
///
/// Errors: those of reading a model; a trained tensor that is not in it, or with another type or
/// other dims; a value whose file is not there.
Result<SavedModel> lay_out_model(const std::string& path, std::vector<TrainedTensor> trained,
                                 const std::string& data_file);

}  // namespace agpcs
