// SPDX-License-Identifier: Apache-2.0
// What this machine is, and what a profile says of it.
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

/// What a core's vectors do.
struct VectorUnit {
  int floats = 0;      ///< fp32 numbers in the widest vector; 0: not known
  int operations = 0;  ///< with each of them in a cycle: two fused multiply-adds, or one of each
};
VectorUnit vector_unit();
/// Cycles a second, as the system says; 0: it does not.
double core_clock();

using NamedTexts = std::vector<std::pair<std::string, std::string>>;
/// "processor", "cores", "quota" where there is one, "threads", "memory"; "gpu" first, unless its
/// name is empty.
NamedTexts hardware_of(const std::string& gpu, int threads);
/// "agpcs", "libtorch", "transport", and "blas", unless it is empty.
NamedTexts software_of(const std::string& transport, const std::string& blas);

}  // namespace agpcs
