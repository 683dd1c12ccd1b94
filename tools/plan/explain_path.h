// SPDX-License-Identifier: Apache-2.0
// Condenses the critical path to a few lines.
#pragma once

#include "tools/plan/explain.h"

#include <cstddef>
#include <string>

namespace agpcs {

/// Returns the path from the step's start to its end. Sequences that repeat for several
/// micro-batches are folded. If there are more than `top` lines, the shortest ones are joined to
/// "...".
std::string path_text(const Explanation& e, std::size_t top);

}  // namespace agpcs
