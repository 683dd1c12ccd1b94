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

struct ClusterFile {
  Cluster cluster;
  Training training;            ///< `training:` section with defaults
  bool says_precision = false;  ///< the section has a precision
  std::string warnings;         ///< ready to print; empty if there are none
};

/// Reads the profile at a path. A cluster file refers to its profiles by path.
using ReadProfile = std::function<Result<Profile>(const std::string& path)>;

/// Reads a cluster file. The cluster refers to the profiles that its figures come from; `calibrate`
/// fits those figures later. `precision` is that of the training if the file says none.
Result<ClusterFile> read_cluster(const std::string& path, Precision precision = Precision::kFp32);
/// Does the same from memory. `file` is the name used in messages; the paths of profiles are
/// relative to its folder.
Result<ClusterFile> parse_cluster(std::string_view text, const std::string& file,
                                  const ReadProfile& read = read_profile,
                                  Precision precision = Precision::kFp32);

}  // namespace agpcs
