// SPDX-License-Identifier: Apache-2.0
// That the BLAS is slow: LibTorch leaves its matrix products to whichever one is installed, and
// with a reference BLAS training takes many times as long as the core needs.
#pragma once

#include "tools/machine.h"

#include <string>

namespace agpcs {

/// How fast a thread multiplies matrices, and what could explain that it is slow.
struct ProductSpeed {
  double measured = 0;  ///< floating-point operations a second; 0: not known
  double clock = 0;     ///< Hz; 0: not known
  VectorUnit vectors;
  double quota = 0;           ///< cores that the process may use; 0: no limit
  std::string blas, library;  ///< `Blas`
};

/// A warning where products run at less than a tenth of what the core does, or of the quota's part
/// of it; ready to print. Empty: they do not, or something is not known.
std::string slow_product_warning(const ProductSpeed& speed);

/// The same of this process: measures a short product.
std::string warn_of_slow_products();

}  // namespace agpcs
