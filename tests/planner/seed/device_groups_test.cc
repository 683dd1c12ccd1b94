// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/device_groups.h"

#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

namespace agpcs::testing {
namespace {

std::string text_of(const std::vector<DeviceId>& devices) {
  std::string text;
  for (const DeviceId id : devices) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

std::string text_of(const std::vector<DeviceGroups>& groupings) {
  std::string text;
  for (const DeviceGroups& groups : groupings) {
    for (std::size_t i = 0; i < groups.size(); ++i) text += (i ? " | " : "") + text_of(groups[i]);
    text += '\n';
  }
  return text;
}

std::string text_of_sets(const std::vector<std::vector<DeviceId>>& sets) {
  std::string text;
  for (const auto& set : sets) text += text_of(set) + "\n";
  return text;
}

TEST(DeviceGroups, HostsRunsOfHostsAndRunsAcrossHosts) {
  EXPECT_EQ(text_of(groupings(fast_and_slow())),
            "0 1 | 2 3\n"
            "0 | 1 | 2 | 3\n"
            "0 2 | 1 3\n");
}

TEST(DeviceGroups, KindsWhereTheyDifferFromHosts) {
  EXPECT_EQ(text_of(groupings(cluster_of("kind x fp32=1e12\nkind y fp32=2e12\n"
                                         "host a x 2\nhost b y 1\nhost c x 1\n"))),
            "0 1 | 2 | 3\n"
            "0 1 3 | 2\n"
            "0 | 1 | 2 | 3\n");
}

TEST(DeviceGroups, OneDeviceHasNoGrouping) {
  EXPECT_EQ(text_of(groupings(cluster_of("kind x fp32=1e12\nhost a x 1\n"))), "");
}

TEST(DeviceSets, AllKindsFasterKindsHostsAndSingleDevices) {
  EXPECT_EQ(text_of_sets(device_sets(fast_and_slow())),
            "0 1 2 3\n"
            "0 1\n"
            "2 3\n"
            "0\n"
            "2\n");
}

}  // namespace
}  // namespace agpcs::testing
