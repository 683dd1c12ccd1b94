// SPDX-License-Identifier: Apache-2.0
// Seconds of matrix products, by tiles, waves over the processors, and power.
#pragma once

#include "cost_model/kernel/device.h"

#include <span>

namespace agpcs {

/// `batch` products of [m,k] and [k,n].
struct Product {
  double batch = 1, m = 1, n = 1, k = 1;
  double operations() const { return 2 * batch * m * n * k; }
  double elements() const { return batch * (m * k + k * n + m * n); }
};

/// The part of a product that one block of threads computes.
struct Tile {
  double m = 0, n = 0;
};

/// A way to compute a product.
struct ProductPlan {
  std::span<const Tile> tiles;  ///< the fastest is taken; empty, or of tensor cores: the usual ones
  double most_parts = 64;       ///< a long sum may be split into that many parts
  double reach = 1;             ///< part of the peak that a busy processor reaches in fp32
  double bytes = 0;             ///< that memory moves
  double output_energy = 0;     ///< of an element, in multiply-adds
  double zeros = 0;             ///< part of the operations that have a zero factor and use no power
};

/// Returns the seconds without the launch: the fastest of tiles and of splits into 1, 2, 4, ...
/// parts. It does not fall when an extent grows.
double product_seconds(const KernelDevice& device, const KernelParameters& parameters,
                       const Product& product, const ProductPlan& plan);

/// Returns the seconds of a product by itself.
double product_seconds(const KernelDevice& device, const KernelParameters& parameters,
                       const Product& product);

}  // namespace agpcs
