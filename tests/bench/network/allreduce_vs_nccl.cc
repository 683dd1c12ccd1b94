// SPDX-License-Identifier: Apache-2.0
// Rings on networks of the catalog against curves of nccl-tests.
//     build/release/tests/allreduce_vs_nccl FOLDER
//
// FOLDER has what nccl-tests printed, v100_allreduce_4gpu.txt and v100_allreduce_8gpu.txt, as in
// VIA-Research/vTrain; the other curves are tests/support/nccl_curves.h. Beside each, the same
// network with its nominal bandwidth and latency typed by hand.
#include "cost_model/network/link_model.h"
#include "frontend/cluster/catalog/catalog.h"
#include "tests/bench/support/mistakes.h"
#include "tests/support/builders.h"
#include "tests/support/nccl_curves.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::NcclCurve;

/// Lines of "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)".
NcclCurve read_curve(const std::string& path, int gpus, const char* network) {
  bench::need_data(path, "what nccl-tests prints of all-reduces on V100");
  NcclCurve curve = {
      fmt::format("{} V100", gpus), "VIA-Research/vTrain (MIT)", 1, gpus, network, "", true, {}};
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = testing::split(line, ',');
    if (fields.size() < 4) continue;
    curve.points.emplace_back(std::stoll(fields[0]), std::stod(fields[3]) * 1e-3);
  }
  return curve;
}

/// Returns the seconds of a ring over all devices.
double ring_seconds(const Cluster& cluster, std::int64_t bytes) {
  std::vector<DeviceId> devices(static_cast<std::size_t>(cluster.device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  return lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kRing, bytes));
}

/// Returns the same cluster as if the nominal figures of its networks were typed.
Cluster typed(Cluster cluster) {
  for (Link& link : cluster.links) {
    link.protocols = -1;
    const NetworkKind* const network = catalog().find_network(link.kind);
    if (network != nullptr) link.bandwidth /= network->efficiency;
  }
  return cluster;
}

void compare(const NcclCurve& curve) {
  const Cluster named =
      testing::cluster_of_curve(curve.hosts, curve.devices, curve.interconnect, curve.nic);
  const Cluster by_hand = typed(named);
  fmt::print("{}: {}{}, {}\n  {}\n", curve.name, curve.interconnect,
             curve.nic.empty() ? "" : " and " + curve.nic, curve.fitted ? "fitted" : "not fitted",
             curve.source);
  fmt::print("{:>12} {:>14} {:>14} {:>10} {:>10}\n", "bytes", "measured (us)", "model (us)",
             "deviation", "typed");
  double worst = 0, sum = 0, worst_typed = 0, sum_typed = 0;
  int sizes = 0;
  for (const auto& [bytes, measured] : curve.points) {
    const double model = 1e6 * ring_seconds(named, bytes);
    const double deviation = model / measured - 1;
    const double nominal = 1e6 * ring_seconds(by_hand, bytes) / measured - 1;
    if ((bytes & (bytes - 1)) == 0) {
      fmt::print("{:>12} {:>14.1f} {:>14.1f} {:>+9.1f}% {:>+9.1f}%\n", bytes, measured, model,
                 deviation * 100, nominal * 100);
    }
    if (bytes < 1 << 20) continue;
    worst = std::max(worst, std::abs(deviation));
    worst_typed = std::max(worst_typed, std::abs(nominal));
    sum += std::abs(deviation);
    sum_typed += std::abs(nominal);
    ++sizes;
  }
  fmt::print(
      "from 1 MiB, {} sizes: mean deviation {:.1f}%, worst {:.1f}%; typed by hand {:.1f}%, "
      "{:.1f}%\n\n",
      sizes, 100 * sum / sizes, 100 * worst, 100 * sum_typed / sizes, 100 * worst_typed);
}

int run(const std::string& folder) {
  compare(read_curve(folder + "/v100_allreduce_4gpu.txt", 4, "nvlink2x4"));
  compare(read_curve(folder + "/v100_allreduce_8gpu.txt", 8, "nvlink2"));
  for (const NcclCurve& curve : testing::nccl_curves()) compare(curve);
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  if (argc != 2) {
    agpcs::bench::end_with_usage("allreduce_vs_nccl", "no folder of measurements",
                                 "FOLDER, of what nccl-tests prints");
  }
  return agpcs::run(argv[1]);
}
