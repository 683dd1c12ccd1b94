// SPDX-License-Identifier: Apache-2.0
// Checks inputs and attributes of operators where ONNX's shape rules do not.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/proto.h"
#include "frontend/onnx/shapes/infer.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace agpcs::frontend {

/// A node of ONNX's own domain at one probe: everything that a check looks at.
struct FitCase {
  const onnx::NodeProto& node;
  int opset = 0;
  const std::vector<const Dense*>& inputs;     ///< nullptr: absent
  const std::vector<InferredOutput>& outputs;  ///< empty before ONNX's rule has run

  /// Returns nullptr if the input is absent.
  const Dense* input(std::size_t i) const { return i < inputs.size() ? inputs[i] : nullptr; }
  std::string name(std::size_t i) const { return node.input(static_cast<int>(i)); }
  /// Returns the integers of input `i` if it is present, else those of the attribute. Returns
  /// nullopt if neither is present or the elements are not known.
  std::optional<Dims> ints(std::size_t i, const char* attribute) const;
};

/// What does not fit, with both values, and what would help. `why` is empty if everything fits.
struct Misfit {
  std::string why, hint;
  explicit operator bool() const { return !why.empty(); }
};

/// Checks that the operator can be computed. Filters, biases, scales and states have the extents
/// that the data requires; lists have a number for each axis; windows fit into the padded input;
/// axes are in range; permutations are valid.
/// Cost: O(elements of shapes and lists).
Misfit check_fit(const FitCase& c);

// The checks of operator families; check_fit() looks operators up in them.
Misfit check_convolution(const FitCase& c);
Misfit check_pool(const FitCase& c);
Misfit check_recurrent(const FitCase& c);
Misfit check_attention(const FitCase& c);
Misfit check_rotary(const FitCase& c);
Misfit check_split(const FitCase& c);
Misfit check_gather(const FitCase& c);
Misfit check_gather_nd(const FitCase& c);
Misfit check_elements(const FitCase& c);
Misfit check_scatter(const FitCase& c);
Misfit check_labels(const FitCase& c);
Misfit check_resize(const FitCase& c);

/// Returns "[64,3,7,7]".
std::string dims_text(const Dims& dims);
/// Returns "fp32[n,3,224,224]", or "int64[2] {n,-1}" with the elements if they are few.
std::string probed_text(const Probed& value);

}  // namespace agpcs::frontend
