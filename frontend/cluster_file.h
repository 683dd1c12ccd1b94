// SPDX-License-Identifier: Apache-2.0
// cluster.yaml reader (docs/cluster_yaml.md is the reference of the format).
#pragma once

#include "ir/cluster.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

struct ClusterFile {
  Cluster cluster;
  Training training;     ///< `training:` section with defaults
  std::string warnings;  ///< ready to print, empty when none
};

Result<ClusterFile> read_cluster(const std::string& path);
/// The same from memory; `file` is the name used in messages.
Result<ClusterFile> parse_cluster(std::string_view text, const std::string& file);

}  // namespace agpcs
