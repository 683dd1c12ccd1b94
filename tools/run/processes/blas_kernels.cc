// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/blas_kernels.h"

#include "runtime/torch/blas.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <unistd.h>

namespace agpcs {
namespace {

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

// OpenBLAS's kernels whose vectors are those of SSE.
constexpr std::array<std::string_view, 17> kSseKernels = {
    "Katmai",  "Coppermine",   "Northwood", "Prescott",   "Banias",  "Yonah",
    "Atom",    "Core2",        "Penryn",    "Dunnington", "Nehalem", "Athlon",
    "Opteron", "Opteron_SSE3", "Barcelona", "Bobcat",     "Nano",
};

}  // namespace

std::string better_kernels(const std::string& kernels, const VectorUnit& vectors) {
  const bool sse = std::find(kSseKernels.begin(), kSseKernels.end(), kernels) != kSseKernels.end();
  const bool fuses_wide = vectors.floats >= 8 && vectors.operations >= 4;  // AVX2 and FMA
  return sse && fuses_wide ? "Haswell" : "";
}

void use_better_kernels(char** argv) {
  if (std::getenv(kVariable) != nullptr) return;
  const std::string better = better_kernels(loaded_blas().kernels, vector_unit());
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  // A program that was given to the loader by name is not what would be started.
  if (error || self.filename() != std::filesystem::path(argv[0]).filename()) return;
  if (better.empty() || setenv(kVariable, better.c_str(), 1) != 0) return;
  execv(self.c_str(), argv);  // returns if that is not possible: products are slow then
  unsetenv(kVariable);
}

}  // namespace agpcs
