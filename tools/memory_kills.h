// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace agpcs {

/// How many processes the kernel has killed on this machine for lack of memory, also within
/// cgroups: "oom_kill" of /proc/vmstat. -1: it does not say.
std::int64_t memory_kills();
/// The same of such a file's text.
std::int64_t memory_kills_of(std::string_view vmstat);

}  // namespace agpcs
