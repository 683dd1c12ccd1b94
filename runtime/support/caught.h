// SPDX-License-Identifier: Apache-2.0
// caught: an exception ends on the thread that it came up on, as an error.
#pragma once

#include <agpcs/status.h>

#include <exception>
#include <new>

namespace agpcs {

/// What `work` gives, a Status or a Result; what it throws (for lack of memory, or in code of the
/// user's) as an error.
template <typename Work>
auto caught(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kUnavailable, "out of memory");
  } catch (const std::exception& error) {
    return internal_error(error.what());
  }
}

}  // namespace agpcs
