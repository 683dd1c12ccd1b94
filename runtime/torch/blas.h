// SPDX-License-Identifier: Apache-2.0
// The BLAS that LibTorch multiplies with: which one it is, its threads, and its speed. This header
// needs no LibTorch.
#pragma once

#include <string>

namespace agpcs {

struct Blas {
  std::string name;  ///< "OpenBLAS 0.3.21 OpenMP SkylakeX"; otherwise "libblas.so.3.11.0 of blas"
  std::string library;  ///< path of the library that multiplies; empty: not known
  std::string
      kernels;  ///< those that OpenBLAS took for the processor, "SkylakeX"; empty: another BLAS
};
/// Returns the BLAS of this process.
Blas loaded_blas();

/// Makes the BLAS compute with `count` threads if it does not follow OpenMP's setting: this holds
/// for OpenBLAS with threads of its own, BLIS and MKL. Needs: `count` > 0.
void use_blas_threads(int count);

/// Returns the floating-point operations a second of a product of two small matrices, as a linear
/// layer has it, on one thread. It is the best of several by the thread's processor time, so that
/// other work and quotas do not count. 0: there was no memory. It takes a millisecond, or 20 if a
/// core does 2 GFLOP/s. Afterwards LibTorch and BLAS have as many threads as LibTorch had before.
double product_speed();

}  // namespace agpcs
