// SPDX-License-Identifier: Apache-2.0
// Checks whether the figures of a cluster file can be those of its kinds.
#pragma once

#include "frontend/cluster/file.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// What a plausible file has, for a summary.
struct PlausibleCluster {
  std::string name;
  int kinds = 0, devices = 0, hosts = 0;
  std::string warnings;  ///< of reading the file, ready to print
};

/// Reads a cluster file and compares its figures with those of the catalog: of the accelerator that
/// a kind is or is called like, and of the network that a link is or is of the class of. Errors
/// (kInvalidInput) are those of reading it, or else all that is implausible, each with its line,
/// both values and a hint: memory, its bandwidth and peaks above the board's; lower precisions that
/// are slower; bandwidths above the nominal one; figures that are off by eight, as bits taken for
/// bytes are; links that an accelerator does not have; latencies out of range.
Result<PlausibleCluster> check_plausible(std::string_view text, const std::string& file,
                                         const ReadProfile& read = read_profile);

}  // namespace agpcs
