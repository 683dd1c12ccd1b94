// SPDX-License-Identifier: Apache-2.0
// What nccl-tests printed of all-reduces (out of place, fp32) on machines of other people: figures
// of public pages.
#pragma once

#include "frontend/cluster/file.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

struct NcclCurve {
  std::string name, source;
  int hosts = 1, devices = 0;     ///< devices of each host
  std::string interconnect, nic;  ///< as in cluster.yaml
  bool fitted = false;            ///< the catalog's protocols were fitted to it
  std::vector<std::pair<std::int64_t, double>> points;  ///< bytes, microseconds
};

/// Returns points at `first` bytes and its doublings.
inline std::vector<std::pair<std::int64_t, double>> doublings(std::int64_t first,
                                                              const std::vector<double>& times) {
  std::vector<std::pair<std::int64_t, double>> points;
  for (const double time : times) {
    points.emplace_back(first, time);
    first *= 2;
  }
  return points;
}

/// From 64 KiB on, or from the first size that the page has.
inline std::vector<NcclCurve> nccl_curves() {
  constexpr std::int64_t kKiB64 = 1 << 16, kMiB = 1 << 20;
  return {
      {"8 V100, DGX-1 wiring", "a blog's page on NCCL of 2019: nccl-tests -g 8", 1, 8, "nvlink2",
       "", true,
       doublings(kKiB64, {52.78, 56.56, 60.26, 61.48, 89.27, 119.6, 147.4, 203.8, 324.1, 550.8,
                          992.7, 1818.8})},
      {"8 A100, NVSwitch",
       "microsoft/superbenchmark (MIT), "
       "tests/benchmarks/micro_benchmarks/test_cuda_nccl_bw_performance.py",
       1, 8, "nvswitch-a100", "", true,
       doublings(kKiB64, {37.82, 41.19, 47.53, 60.32, 74.78, 93.48, 112.0, 162.0, 226.0, 374.3,
                          584.5, 1162.2, 2112.2, 4200.3, 8159.5, 16215, 32070, 63896})},
      {"2 H100, NVSwitch", "NCCL Guide for DigitalOcean Bare Metal Machines (MIT)", 1, 2,
       "nvswitch-h100", "", true,
       doublings(kKiB64, {14.05, 15.62, 17.68, 17.23, 26.3, 30.67, 35.13, 47.86, 73.28, 127.7,
                          223.4, 415.0, 792.7, 1541.7, 2996.1})},
      {"2 x 8 A100, 8 HDR each",
       "a page on HPC with Azure Machine Learning: two Standard_ND96asr_v4", 2, 8, "nvswitch-a100",
       "{kind: ib-hdr, bandwidth: 192GB/s}", false,
       doublings(kMiB,
                 {96.57, 127.5, 147.0, 210.7, 332.4, 614.9, 947.8, 1682.8, 2975.4, 5744.6, 11080})},
      {"4 x 8 A100, 8 HDR each", "NVIDIA/deepops (BSD), docs/slurm-cluster: four DGX A100", 4, 8,
       "nvswitch-a100", "{kind: ib-hdr, bandwidth: 192GB/s}", false,
       doublings(kMiB, {135.3, 161.5, 228.7, 320.3, 381.0, 586.2, 1079.5, 2281.2, 3083.1, 5657.1,
                        11643})},
      {"2 A100, four NVLinks", "NVIDIA/nccl-tests, issue 331", 1, 2,
       "{kind: nvlink3, bandwidth: 80GB/s}", "", false,
       doublings(kKiB64, {15.66, 19.45, 24.17, 30.84, 45.34, 71.38, 108.9, 180.6, 330.2, 631.3,
                          1215.9, 1833.5, 3655.1, 7460.2, 14892})},
  };
}

/// Returns the cluster of equal hosts that a curve is of.
inline Cluster cluster_of_curve(int hosts, int devices, const std::string& interconnect,
                                const std::string& nic) {
  std::string text =
      "device_kinds: {gpu: {memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15TFLOPS}}}\n"
      "hosts:\n";
  for (int h = 0; h < hosts; ++h) {
    text +=
        fmt::format("  - {{name: h{}, devices: {{kind: gpu, count: {}}}, interconnect: {}{}}}\n", h,
                    devices, interconnect, nic.empty() ? "" : ", nic: " + nic);
  }
  const Result<ClusterFile> file = parse_cluster(text, "curve.yaml", read_profile);
  return file.ok() ? file->cluster : Cluster{};
}

}  // namespace agpcs::testing
