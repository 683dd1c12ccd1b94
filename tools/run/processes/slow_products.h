// SPDX-License-Identifier: Apache-2.0
// Warns of a slow BLAS. LibTorch leaves its matrix products to the installed BLAS, and with a
// reference BLAS training takes many times as long as the core needs.
#pragma once

#include "tools/run/processes/machine.h"

#include <string>

namespace agpcs {

/// The speed at which a thread multiplies matrices, and what could explain a low one.
struct ProductSpeed {
  double measured = 0;  ///< floating-point operations per second; 0: unknown
  double clock = 0;     ///< Hz; 0: unknown
  VectorUnit vectors;
  double quota = 0;           ///< cores that the process may use; 0: no limit
  std::string blas, library;  ///< `Blas`
};

/// Returns a warning, ready to print, if products run at less than a tenth of the core's speed, or
/// of the quota's share of it. Returns an empty text otherwise, and if something is unknown.
std::string slow_product_warning(const ProductSpeed& speed);

/// Does the same for this process: measures a short product.
std::string warn_of_slow_products();

}  // namespace agpcs
