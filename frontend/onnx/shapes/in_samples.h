// SPDX-License-Identifier: Apache-2.0
// Says in terms of n, the number of samples, what was found at the probes.
#pragma once

#include "frontend/onnx/dense.h"

#include <array>
#include <cstddef>
#include <string>

namespace agpcs::frontend {

/// Joins one message per probe into one: numbers that differ become "n", "8n" or "n+1". If the
/// messages differ in more than that, returns the one of `probe` with n for its number of samples.
std::string in_samples(const std::array<std::string, kProbeCount>& messages, std::size_t probe);

/// Returns "n", "8n+1" or "7".
std::string extent_text(const Extent& extent);

}  // namespace agpcs::frontend
