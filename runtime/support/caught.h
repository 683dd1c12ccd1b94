// SPDX-License-Identifier: Apache-2.0
// caught: turns an exception into an error, on the thread where it came up.
#pragma once

#include <agpcs/status.h>

#include <exception>
#include <new>

namespace agpcs {

/// Returns what `work` returns, a Status or a Result. An exception (for lack of memory, or in a
/// user's code) becomes an error.
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
