// SPDX-License-Identifier: Apache-2.0
// Checks of operators' inputs and attributes that ONNX's shape rules leave out.
#pragma once

#include "frontend/onnx_dense.h"
#include "frontend/onnx_infer.h"

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace agpcs::frontend {

/// A node of ONNX's own domain at one probe: what fits is judged by.
struct FitCase {
  const onnx::NodeProto& node;
  int opset = 0;
  const std::vector<const Dense*>& inputs;     ///< nullptr: absent
  const std::vector<InferredOutput>& outputs;  ///< none before ONNX's rule was asked

  /// Nullptr: absent.
  const Dense* input(std::size_t i) const { return i < inputs.size() ? inputs[i] : nullptr; }
  std::string name(std::size_t i) const { return node.input(static_cast<int>(i)); }
  /// Integers from input `i`, where it is there, else from the attribute. Nullopt: neither says, or
  /// the elements are not known.
  std::optional<Dims> ints(std::size_t i, const char* attribute) const;
};

/// What does not fit, both values of it, and what would help. Nothing does where `why` is empty.
struct Misfit {
  std::string why, hint;
  explicit operator bool() const { return !why.empty(); }
};

/// Whether the operator can be computed: filters, biases, scales and states have the extents that
/// the data asks for, lists have a number for each axis, windows fit into the padded input, axes
/// are in range, permutations are ones.
/// Cost: O(elements of shapes and lists).
Misfit check_fit(const FitCase& c);

// The checks that check_fit() looks operators up in, by family.
Misfit check_convolution(const FitCase& c);
Misfit check_pool(const FitCase& c);
Misfit check_recurrent(const FitCase& c);

/// "[64,3,7,7]".
std::string dims_text(const Dims& dims);
/// "fp32[n,3,224,224]", and "int64[2] {1009,-1}" with the elements at `probe` where they are few.
std::string probed_text(const Probed& value, std::size_t probe);

}  // namespace agpcs::frontend
