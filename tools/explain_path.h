// SPDX-License-Identifier: Apache-2.0
// The critical path condensed to a few lines.
#pragma once

#include "tools/explain.h"

#include <cstddef>
#include <string>

namespace agpcs {

/// The path from the step's start to its end; what repeats for several micro-batches is folded.
/// Where there are more than `top` lines, the shortest ones are joined to "...".
std::string path_text(const Explanation& e, std::size_t top);

}  // namespace agpcs
