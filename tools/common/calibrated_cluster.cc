// SPDX-License-Identifier: Apache-2.0
#include "tools/common/calibrated_cluster.h"

#include <utility>

namespace agpcs {

Result<CalibratedCluster> read_calibrated_cluster(const std::string& path,
                                                  const UnsaidPrecision& unsaid) {
  AGPCS_TRY(ClusterFile file, read_cluster(path, unsaid));
  AGPCS_TRY(Calibrated calibrated, calibrate(std::move(file.cluster)));
  file.cluster = std::move(calibrated.cluster);
  if (!file.warnings.empty() && !calibrated.warnings.empty()) file.warnings += '\n';
  file.warnings += calibrated.warnings;
  return CalibratedCluster{std::move(file), std::move(calibrated.fits)};
}

}  // namespace agpcs
