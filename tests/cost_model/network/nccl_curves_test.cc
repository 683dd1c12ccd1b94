// SPDX-License-Identifier: Apache-2.0
// Networks of the catalog against other people's measurements, without a profile.
#include "tests/support/nccl_curves.h"

#include "cost_model/network/link_model.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace agpcs {
namespace {

double ring_seconds(const Cluster& cluster, std::int64_t bytes) {
  std::vector<DeviceId> devices(static_cast<std::size_t>(cluster.device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  return lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kRing, bytes));
}

TEST(NcclCurves, RingsAreWithin15PercentFrom1MiBOn) {
  int curves = 0;
  for (const testing::NcclCurve& curve : testing::nccl_curves()) {
    if (!curve.fitted) continue;
    const Cluster cluster =
        testing::cluster_of_curve(curve.hosts, curve.devices, curve.interconnect, curve.nic);
    ASSERT_EQ(cluster.device_count(), curve.devices) << curve.name;
    for (const auto& [bytes, measured] : curve.points) {
      if (bytes < 1 << 20) continue;
      EXPECT_NEAR(1e6 * ring_seconds(cluster, bytes) / measured, 1, 0.15)
          << curve.name << ", " << bytes << " bytes";
    }
    ++curves;
  }
  EXPECT_EQ(curves, 3);
}

// These had no part in the choice of any figure.
TEST(NcclCurves, RingsOfSeveralHostsAreWithin36Percent) {
  for (const testing::NcclCurve& curve : testing::nccl_curves()) {
    if (curve.hosts == 1) continue;
    const Cluster cluster =
        testing::cluster_of_curve(curve.hosts, curve.devices, curve.interconnect, curve.nic);
    for (const auto& [bytes, measured] : curve.points) {
      EXPECT_NEAR(1e6 * ring_seconds(cluster, bytes) / measured, 1, 0.36)
          << curve.name << ", " << bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace agpcs
