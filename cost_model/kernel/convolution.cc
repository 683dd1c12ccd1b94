// SPDX-License-Identifier: Apache-2.0
#include "cost_model/kernel/convolution.h"

#include <algorithm>
#include <cmath>

namespace agpcs {
namespace {

constexpr Tile kDirectTiles[] = {{128, 16}};
constexpr Tile kSmallTiles[] = {{32, 32}, {128, 16}, {16, 128}};
constexpr Tile kLargeTiles[] = {{64, 32}};
constexpr double kFilterPixels = 9;
constexpr double kFewestChannels = 8;  // of a group: with fewer, a product is no use
constexpr double kManyChannels = 64;   // of a group: with more, it is a convolution by itself

double pixels(const Convolution& c) { return c.images * c.height_out * c.width_out; }

/// Returns the elements of the images that go in and come out, of all groups.
double image_elements(const Convolution& c) {
  const double in = c.images * c.height_in * c.width_in * c.channels_in;
  return c.groups * (in + pixels(c) * c.channels_out);
}

double tensor_bytes(const KernelDevice& device, const Convolution& c) {
  const double filters = c.channels_in * c.channels_out * c.kernel_height * c.kernel_width;
  return device.element_bytes * (image_elements(c) + c.groups * filters);
}

/// Returns the part of the products that read the zeros around an image: one pixel at each end of
/// a 3x3 kernel's way, and likewise for larger kernels that keep the image's size.
double padding(const Convolution& c) {
  const auto along = [](double in, double out, double kernel) {
    const double taps = out * kernel;
    return out == in && kernel > 1 ? 1 - (kernel * kernel - 1) / (4 * taps) : 1;
  };
  return 1 - std::max(0.0, along(c.height_in, c.height_out, c.kernel_height)) *
                 std::max(0.0, along(c.width_in, c.width_out, c.kernel_width));
}

double direct(const KernelDevice& device, const KernelParameters& parameters, const Convolution& c,
              ConvolutionPass pass) {
  const double taps = c.kernel_height * c.kernel_width;
  ProductPlan plan;
  plan.tiles = kDirectTiles;
  plan.most_parts = 1;
  plan.bytes = tensor_bytes(device, c);
  plan.zeros = padding(c);
  Product product = {c.groups, pixels(c), c.channels_out, c.channels_in * taps};
  if (pass == ConvolutionPass::kInputGradient) {
    product = {c.groups, c.images * c.height_in * c.width_in, c.channels_in,
               c.channels_out * taps / (c.stride * c.stride)};
  }
  if (pass == ConvolutionPass::kFilterGradient) {
    product = {c.groups, c.channels_in * taps, c.channels_out, pixels(c)};
    plan.most_parts = 64;
  }
  return product_seconds(device, parameters, product, plan);
}

/// Winograd's algorithm with tiles of `side` outputs a side.
double winograd(const KernelDevice& device, const KernelParameters& parameters,
                const Convolution& c, ConvolutionPass pass, double side) {
  const bool large = side == 4;
  const double points = (side + 2) * (side + 2);
  const double tiles = c.images * std::ceil(c.height_out / side) * std::ceil(c.width_out / side);
  Product product = {points, tiles, c.channels_out, c.channels_in};
  if (pass == ConvolutionPass::kInputGradient) std::swap(product.n, product.k);
  ProductPlan plan;
  plan.tiles = large ? std::span<const Tile>(kLargeTiles) : std::span<const Tile>(kSmallTiles);
  plan.most_parts = 1;
  plan.reach = large ? parameters.winograd_large : parameters.winograd_small;
  plan.bytes = large ? device.element_bytes * product.elements() : tensor_bytes(device, c);
  plan.zeros = 1 - pixels(c) / (tiles * side * side);
  if (pass == ConvolutionPass::kFilterGradient) {
    product = {points, c.channels_out, c.channels_in, tiles};
    plan.most_parts = 64;
  }
  const double channels = c.channels_in + c.channels_out;
  const double moved = large ? 4 * channels * (pixels(c) + points * tiles) : 0;
  const double filters = 4 * (points + kFilterPixels) * c.channels_in * c.channels_out;
  return product_seconds(device, parameters, product, plan) +
         (moved * parameters.transforms + filters * parameters.filters) / device.bandwidth;
}

/// Returns the seconds to turn images for tensor cores, which want the channels last. Training in
/// fp32 and tf32 keeps channels first, so input and output are read and written once more.
double transposed(const KernelDevice& device, const Convolution& c) {
  if (device.element_bytes < 4) return 0;
  return 2 * device.element_bytes * image_elements(c) / device.bandwidth;
}

/// A convolution in groups of few channels is slow for what it moves.
double grouped(const KernelDevice& device, const KernelParameters& parameters, const Convolution& c,
               ConvolutionPass pass) {
  const double channels = std::min(c.channels_in, c.channels_out);
  const double moved = tensor_bytes(device, c) * std::min(1.0, kManyChannels / channels);
  const double stream = parameters.grouped * moved / device.bandwidth;
  if (channels < kFewestChannels) return stream;
  return std::max(stream, direct(device, parameters, c, pass));
}

bool allows_winograd(const Convolution& c) {
  return c.kernel_height == 3 && c.kernel_width == 3 && c.stride == 1 && c.dilation == 1;
}

}  // namespace

double convolution_seconds(const KernelDevice& device, const KernelParameters& parameters,
                           const Convolution& convolution, ConvolutionPass pass) {
  if (convolution.groups > 1) return grouped(device, parameters, convolution, pass);
  const double best = direct(device, parameters, convolution, pass);
  if (device.tensor_cores) return best + transposed(device, convolution);
  if (!allows_winograd(convolution)) return best;
  return std::min({best, winograd(device, parameters, convolution, pass, 2),
                   winograd(device, parameters, convolution, pass, 4)});
}

}  // namespace agpcs
