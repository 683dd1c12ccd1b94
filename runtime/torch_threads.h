// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/status.h>

namespace agpcs {

/// Has LibTorch compute with `count` threads; with 0 or less as many as it likes. kUnavailable
/// where this process cannot start them: LibTorch's pool would wait for ever for one that did not
/// start.
Status use_threads(int count);

}  // namespace agpcs
