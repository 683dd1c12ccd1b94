// SPDX-License-Identifier: Apache-2.0
// Reads cluster.yaml. docs/reference/cluster_yaml.md is the reference of the format.
#pragma once

#include "frontend/cluster/profile_file.h"
#include "ir/cluster/cluster.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <functional>
#include <string>
#include <string_view>

namespace agpcs {

/// What agpcs-cluster writes as the `hardware` of an accelerator that it does not know. To read it
/// is an error, which says what to fill in.
inline constexpr char kHardwareToFillIn[] = "fill-in";

struct ClusterFile {
  Cluster cluster;
  Training training;     ///< `training:` section with defaults
  std::string warnings;  ///< ready to print; empty if there are none
};

/// Reads the profile at a path. A cluster file refers to its profiles by path.
using ReadProfile = std::function<Result<Profile>(const std::string& path)>;

/// Returns the precision of a training for which the file says none. Without a function it is fp32.
using UnsaidPrecision = std::function<Precision()>;

/// Reads a cluster file. The cluster refers to the profiles that its figures come from; `calibrate`
/// fits those figures later.
Result<ClusterFile> read_cluster(const std::string& path, const UnsaidPrecision& unsaid = nullptr);
/// Does the same from memory. `file` is the name used in messages; the paths of profiles are
/// relative to its folder.
Result<ClusterFile> parse_cluster(std::string_view text, const std::string& file,
                                  const ReadProfile& read = read_profile,
                                  const UnsaidPrecision& unsaid = nullptr);

}  // namespace agpcs
