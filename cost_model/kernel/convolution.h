// SPDX-License-Identifier: Apache-2.0
// Seconds of two-dimensional convolutions, by the fastest of their algorithms.
#pragma once

#include "cost_model/kernel/product.h"

namespace agpcs {

/// A convolution of `images`. Channels are those of one group.
struct Convolution {
  double images = 1, groups = 1, channels_in = 1, channels_out = 1;
  double height_in = 1, width_in = 1, height_out = 1, width_out = 1;
  double kernel_height = 1, kernel_width = 1;
  double stride = 1, dilation = 1;
};

enum class ConvolutionPass { kForward, kInputGradient, kFilterGradient };

/// Returns the seconds of a pass without its launch. In fp32, a 3x3 kernel that moves by one pixel
/// may be Winograd's, with tiles of 2x2 or of 4x4 outputs; all others are products with the pixels
/// of the kernel as one extent.
double convolution_seconds(const KernelDevice& device, const KernelParameters& parameters,
                           const Convolution& convolution, ConvolutionPass pass);

}  // namespace agpcs
