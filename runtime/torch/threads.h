// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/status.h>

namespace agpcs {

/// Makes LibTorch, and the BLAS that it multiplies with, compute with `count` threads for the
/// calling thread; 0 or less lets them choose. kUnavailable: this process cannot start so many
/// threads; LibTorch's pool would wait for ever for one that did not start.
Status use_threads(int count);

}  // namespace agpcs
