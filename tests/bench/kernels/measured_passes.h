// SPDX-License-Identifier: Apache-2.0
// Our own list of measured kernels, forward and backward, as tests/gpu/kernels.py writes it.
#pragma once

#include "tests/bench/kernels/measured_kernels.h"

#include <agpcs/status.h>
#include <agpcs/training.h>

#include <string>
#include <vector>

namespace agpcs {

/// The kernels of one class in one precision, of one pass.
struct MeasuredPass {
  MeasuredSet set;
  Precision precision = Precision::kFp32;
  bool backward = false;

  /// Returns the kernels that a plan counts for a pass: products have one a gradient.
  int kernels_each() const { return backward && set.is_product() ? 2 : 1; }
};

/// Reads a list, in its order. Errors: a row that is no kernel of a known device; no rows at all.
Result<std::vector<MeasuredPass>> read_measured_passes(const std::string& file);

/// What plans expect of a kernel, with its launches.
struct ExpectedSeconds {
  double model = 0, roofline = 0;
};

/// Returns what `CostTable` has for the operator that runs the kernel, on the catalog's kind.
ExpectedSeconds expected_seconds(const MeasuredPass& pass, const MeasuredKernel& kernel);

}  // namespace agpcs
