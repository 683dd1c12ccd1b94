// SPDX-License-Identifier: Apache-2.0
// What a profile says of the machine it was taken on.
#pragma once

#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

/// Cores of processor time that the control groups of this process allow; 0: as many as there are.
double cpu_quota();
/// Bytes of memory that are free for this process, in the machine and in its control groups.
std::int64_t free_memory();

using NamedTexts = std::vector<std::pair<std::string, std::string>>;
/// "processor", "cores", "quota" where there is one, "threads", "memory"; "gpu" first, unless its
/// name is empty.
NamedTexts hardware_of(const std::string& gpu, int threads);
/// "agpcs", "libtorch", "transport".
NamedTexts software_of(const std::string& transport);

}  // namespace agpcs
