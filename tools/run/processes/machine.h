// SPDX-License-Identifier: Apache-2.0
// Finds out what this machine is, and describes it for profiles.
#pragma once

#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

/// Returns the processor time that this process's control groups allow, in cores; 0: no limit.
double cpu_quota();
/// Returns the bytes of memory that are free for this process, in the machine and in its control
/// groups.
std::int64_t free_memory();

/// The vector unit of a core.
struct VectorUnit {
  int floats = 0;      ///< fp32 numbers in the widest vector; 0: unknown
  int operations = 0;  ///< per number and cycle: 4 (two fused multiply-adds) or 2 (an addition and
                       ///< a multiplication)
};
VectorUnit vector_unit();
/// Returns the clock in cycles per second that the system reports; 0: it reports none.
double core_clock();

using NamedTexts = std::vector<std::pair<std::string, std::string>>;
/// Returns "processor", "cores", "quota" if there is one, "threads" and "memory"; "gpu" comes
/// first, unless its name is empty.
NamedTexts hardware_of(const std::string& gpu, int threads);

}  // namespace agpcs
