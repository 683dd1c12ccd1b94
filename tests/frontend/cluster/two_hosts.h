// SPDX-License-Identifier: Apache-2.0
// The text of a cluster of two unlike hosts, for tests of cluster files.
#pragma once

#include "frontend/cluster/file.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {

inline constexpr char kTwoHosts[] = R"(name: two
device_kinds:
  gpu: {memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS}}
hosts:
  - name: a
    devices: {kind: gpu, count: 2}
    interconnect: {kind: nvlink, bandwidth: 50GB/s, latency: 4us}
    nic: {bandwidth: 80Gbit/s, latency: 10us}
  - name: b
    devices: {kind: gpu, count: 1}
    interconnect: {kind: pcie, bandwidth: 16GB/s, latency: 6us}
    nic: {bandwidth: 8Gbit/s, latency: 30us}
training: {batch: 64}
)";

/// The text with one part replaced.
inline std::string two_hosts_with(const std::string& from, const std::string& to) {
  std::string text = kTwoHosts;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// What is wrong with a cluster file of that text.
inline std::string error_of(const std::string& text) {
  const Result<ClusterFile> file = parse_cluster(text, "c.yaml");
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidInput);
  return file.status().message();
}

}  // namespace agpcs
