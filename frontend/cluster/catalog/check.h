// SPDX-License-Identifier: Apache-2.0
// Checks what the figures of an accelerator say together.
#pragma once

#include "frontend/cluster/catalog/catalog.h"

#include <string>
#include <vector>

namespace agpcs {

/// Returns what is implausible about the figures of `a`, each as one message: a figure that every
/// accelerator needs is absent; a peak is not what lanes, processors and clock give; a lower
/// precision is slower than a higher one.
std::vector<std::string> implausible_figures(const AcceleratorKind& a);

}  // namespace agpcs
