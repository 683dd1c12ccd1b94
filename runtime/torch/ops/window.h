// SPDX-License-Identifier: Apache-2.0
// The sliding window of convolutions and poolings: extents, strides and padding of each spatial
// axis.
#pragma once

#include "runtime/torch_ops.h"

#include <cstdint>
#include <vector>

namespace agpcs {

struct Window {
  std::vector<std::int64_t> kernel, stride, dilation, before, after;  // one entry a spatial axis
  std::size_t axes() const { return kernel.size(); }
  bool symmetric() const { return before == after; }
  /// Last minus first position of the window's elements, plus one.
  std::int64_t reach(std::size_t axis) const { return dilation[axis] * (kernel[axis] - 1) + 1; }
};

/// The operator's window over `input` ([N, C, spatial...]), `auto_pad` resolved. `kernel`: taken
/// where the operator has no kernel_shape.
Window window_of(const OpCall& call, const at::Tensor& input, std::vector<std::int64_t> kernel);

/// `x` padded by `before` and `after` on its spatial axes.
at::Tensor pad_spatial(const at::Tensor& x, const std::vector<std::int64_t>& before,
                       const std::vector<std::int64_t>& after, double value);

}  // namespace agpcs
