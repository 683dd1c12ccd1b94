// SPDX-License-Identifier: Apache-2.0
// The operators of PyTorch that a profile knows, and the work of a call of one.
#pragma once

#include "ir/graph/op_table.h"
#include "tools/profile/kineto/trace.h"

#include <agpcs/plan.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace agpcs {

/// One row of the table.
struct AtenOperator {
  /// How the output follows from the inputs.
  enum class Output : std::uint8_t {
    kView,         ///< shares its input's memory, or only allocates: no work
    kElementwise,  ///< the inputs, broadcast
    kSame,         ///< as large as the first input
    kMatrices,     ///< the product of the first two
    kConvolution,  ///< by stride, padding, dilation, transposed, output padding
    kPool,         ///< by kernel, stride, padding
    kResized,      ///< the first input with other last extents
    kReduced,      ///< the first input without the axes that are summed
    kRows,         ///< rows of the first input, one for each index
    kJoined,       ///< a list of tensors, one behind the other
    kAttention,    ///< queries with the values' width
  };
  std::string_view name;  ///< "aten::addmm"; one that ends in _ is the same in place
  std::string_view onnx;  ///< the ONNX operator with the same work
  Output output = Output::kElementwise;
  std::array<std::int8_t, 5> inputs = {0, 1, 2, 3, 4};  ///< positions of the ONNX operator's inputs
};

std::span<const AtenOperator> aten_operators();

/// Returns nullptr for an operator outside the table.
const AtenOperator* find_aten(std::string_view name);

OpClass class_of(const AtenOperator& row);

/// Returns the work of a call by the rules of the ONNX operator. `backward`: all floating inputs
/// get a gradient.
OpCost work_of(const AtenOperator& row, const TracedInputs& inputs, Precision precision,
               bool backward);

}  // namespace agpcs
