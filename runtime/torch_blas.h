// SPDX-License-Identifier: Apache-2.0
// The BLAS that LibTorch multiplies by: which one it is, its threads, and how fast it is. This
// header needs no LibTorch.
#pragma once

#include <string>

namespace agpcs {

struct Blas {
  std::string name;     ///< "OpenBLAS 0.3.21 OpenMP SkylakeX"; else "libblas.so.3.11.0 of blas"
  std::string library;  ///< path of the library that multiplies; empty: not known
};
/// The one that this process has.
Blas loaded_blas();

/// Has the BLAS compute with `count` threads where it does not do as OpenMP is told: OpenBLAS with
/// threads of its own, BLIS and MKL. Needs: `count` > 0.
void use_blas_threads(int count);

/// Floating-point operations a second of a product of two small matrices, as a linear layer has it,
/// on one thread: the best of several, by the thread's processor time, so that what else runs and
/// quotas do not count. 0: there was no memory for it. Takes a millisecond, and 20 where a core
/// does 2 GFLOP/s. LibTorch and BLAS have as many threads afterwards as LibTorch had before.
double product_speed();

}  // namespace agpcs
