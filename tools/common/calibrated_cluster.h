// SPDX-License-Identifier: Apache-2.0
// The cluster that commands use to plan, check and simulate.
#pragma once

#include "cost_model/fit/calibrate.h"
#include "frontend/cluster/file.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

struct CalibratedCluster {
  ClusterFile file;             ///< its cluster is calibrated; `warnings` include those of the fits
  std::vector<FitReport> fits;  ///< fits to the profiles that the file refers to
};

/// Does `read_cluster`, then `calibrate`. This is the only way from a cluster file to costs, so
/// that a plan's cluster is the same for every command.
Result<CalibratedCluster> read_calibrated_cluster(const std::string& path,
                                                  const UnsaidPrecision& unsaid = nullptr);

}  // namespace agpcs
