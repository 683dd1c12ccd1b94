// SPDX-License-Identifier: Apache-2.0
// The cluster that commands plan, check and simulate with.
#pragma once

#include "cost_model/calibrate.h"
#include "frontend/cluster_file.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

struct CalibratedCluster {
  ClusterFile file;  ///< its cluster is calibrated; `warnings` are those of the fits, too
  std::vector<FitReport> fits;  ///< to the profiles that the file refers to
};

/// `read_cluster`, then `calibrate`: the one way from a cluster file to costs, so that a plan's
/// cluster is the same to every command.
Result<CalibratedCluster> read_calibrated_cluster(const std::string& path);

}  // namespace agpcs
