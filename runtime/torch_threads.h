// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/status.h>

namespace agpcs {

/// Has LibTorch, and the BLAS that it multiplies by, compute with `count` threads where the calling
/// thread asks; with 0 or less with as many as they like. kUnavailable where this process cannot
/// start them: LibTorch's pool would wait for ever for one that did not start.
Status use_threads(int count);

}  // namespace agpcs
