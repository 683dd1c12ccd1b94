// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/slow_products.h"

#include "runtime/torch/blas.h"

#include <fmt/format.h>

#include <algorithm>

namespace agpcs {

std::string slow_product_warning(const ProductSpeed& speed) {
  constexpr double kSlow = 0.1;
  const double core = speed.clock * speed.vectors.floats * speed.vectors.operations;
  const double allowed = speed.quota > 0 ? std::min(1.0, speed.quota) : 1;
  if (speed.measured <= 0 || speed.measured >= kSlow * core * allowed) return {};
  const bool openblas = speed.blas.rfind("OpenBLAS", 0) == 0;
  const std::string hint =
      openblas ? "set OPENBLAS_CORETYPE to kernels of the processor, or install a later one"
               : "install a fast one, OpenBLAS (Debian: libopenblas0-openmp)";
  const std::string where = speed.library.empty() ? "" : fmt::format(" ({})", speed.library);
  return fmt::format(
      "warning: matrices are multiplied at {:.3g} GFLOP/s on a core that does up to {:.3g} "
      "({:.3g} GHz x {} floats x {} operations)\n"
      "  the BLAS that LibTorch uses is {}{}\n"
      "  hint: {}; steps are many times as long otherwise, and so are those that a profile "
      "measures\n",
      1e-9 * speed.measured, 1e-9 * core, 1e-9 * speed.clock, speed.vectors.floats,
      speed.vectors.operations, speed.blas, where, hint);
}

std::string warn_of_slow_products() {
  const Blas blas = loaded_blas();
  return slow_product_warning(
      {product_speed(), core_clock(), vector_unit(), cpu_quota(), blas.name, blas.library});
}

}  // namespace agpcs
