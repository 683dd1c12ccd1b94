// SPDX-License-Identifier: Apache-2.0
// The sliding window of convolutions and poolings: its extent, stride and padding on each
// spatial axis.
#pragma once

#include "runtime/torch/ops/ops.h"

#include <cstdint>
#include <vector>

namespace agpcs {

struct Window {
  std::vector<std::int64_t> kernel, stride, dilation, before, after;  // by spatial axis
  std::size_t axes() const { return kernel.size(); }
  bool symmetric() const { return before == after; }
  /// Returns the last minus the first position of the window's elements, plus one.
  std::int64_t reach(std::size_t axis) const { return dilation[axis] * (kernel[axis] - 1) + 1; }
};

/// Returns the operator's window over `input` ([N, C, spatial...]), with `auto_pad` resolved.
/// `kernel` is used if the operator has no kernel_shape.
Window window_of(const OpCall& call, const at::Tensor& input, std::vector<std::int64_t> kernel);

/// Returns `x` padded by `before` and `after` on its spatial axes.
at::Tensor pad_spatial(const at::Tensor& x, const std::vector<std::int64_t>& before,
                       const std::vector<std::int64_t>& after, double value);

}  // namespace agpcs
