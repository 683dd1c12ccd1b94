// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace agpcs {

/// Returns how many processes the kernel has killed on this machine for lack of memory, also within
/// cgroups: "oom_kill" of /proc/vmstat. Returns -1 if the kernel does not report it.
std::int64_t memory_kills();
/// Does the same for the text of such a file.
std::int64_t memory_kills_of(std::string_view vmstat);

}  // namespace agpcs
