// SPDX-License-Identifier: Apache-2.0
// cluster.yaml reader (docs/cluster_yaml.md is the reference of the format).
#pragma once

#include "frontend/profile_file.h"
#include "ir/cluster.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <functional>
#include <string>
#include <string_view>

namespace agpcs {

struct ClusterFile {
  Cluster cluster;
  Training training;     ///< `training:` section with defaults
  std::string warnings;  ///< ready to print, empty when none
};

/// How the profiles that a cluster refers to are read, by path.
using ReadProfile = std::function<Result<Profile>(const std::string& path)>;

/// Figures that come from profiles are referred to, not fitted yet: `calibrate` does that.
Result<ClusterFile> read_cluster(const std::string& path);
/// The same from memory; `file` is the name used in messages, and its folder the one that the names
/// of profiles are relative to.
Result<ClusterFile> parse_cluster(std::string_view text, const std::string& file,
                                  const ReadProfile& read = read_profile);

}  // namespace agpcs
