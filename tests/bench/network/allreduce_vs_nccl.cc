// SPDX-License-Identifier: Apache-2.0
// The ring formula against nccl-tests on V100: a table by size.
//     build/release/tests/allreduce_vs_nccl FOLDER
//
// FOLDER has what nccl-tests printed, v100_allreduce_4gpu.txt and v100_allreduce_8gpu.txt, as in
// VIA-Research/vTrain.
// A V100 has NVLinks of 25 GB/s each way. NCCL runs one ring over each that the machine's wiring
// lets it close: four in the 4-GPU machine, six in the 8-GPU one (DGX-1V, as on AWS p3). A lockstep
// ring at 4 x 25 or 6 x 25 GB/s is the datasheet's prediction; nothing is fitted. Latency per step
// is the sample cluster's 3 us a port.
#include "cost_model/network/link_model.h"
#include "tests/bench/support/mistakes.h"
#include "tests/support/builders.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

struct Measurement {
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// Lines of "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)".
std::vector<Measurement> read_measurements(const std::string& path) {
  std::ifstream file(path);
  std::vector<Measurement> measurements;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = testing::split(line, ',');
    if (fields.size() < 4) continue;
    measurements.push_back({std::stoll(fields[0]), std::stod(fields[3]) * 1e-9});
  }
  return measurements;
}

Cluster machine(int gpus, int rings) {
  return testing::cluster_of(fmt::format(
      "kind v100 fp32=15.7e12\nhost a v100 {} bandwidth={} latency=1.5e-6\n", gpus, rings * 25e9));
}

void compare(const std::string& path, int gpus, int rings) {
  const std::vector<Measurement> measurements = read_measurements(path);
  const Cluster cluster = machine(gpus, rings);
  std::vector<DeviceId> devices(static_cast<std::size_t>(gpus));
  std::iota(devices.begin(), devices.end(), 0);
  fmt::print("{} V100, ring over {} x 25 GB/s, {} sizes\n", gpus, rings, measurements.size());
  fmt::print("{:>12} {:>14} {:>14} {:>10}\n", "bytes", "measured (us)", "model (us)", "deviation");
  double worst = 0, sum = 0;
  int large = 0;
  for (std::size_t i = 0; i < measurements.size(); ++i) {
    const auto& [bytes, measured] = measurements[i];
    const double model =
        lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kRing, bytes));
    const double deviation = model / measured - 1;
    const bool power_of_two = (bytes & (bytes - 1)) == 0;
    if (power_of_two) {
      fmt::print("{:>12} {:>14.1f} {:>14.1f} {:>+9.1f}%\n", bytes, measured * 1e6, model * 1e6,
                 deviation * 100);
    }
    if (bytes < 32 << 20) continue;
    worst = std::max(worst, std::abs(deviation));
    sum += std::abs(deviation);
    ++large;
  }
  fmt::print("from 32 MiB: mean deviation {:.1f}%, worst {:.1f}%\n\n", 100 * sum / large,
             100 * worst);
}

int run(const std::string& folder) {
  const std::string four = folder + "/v100_allreduce_4gpu.txt";
  const std::string eight = folder + "/v100_allreduce_8gpu.txt";
  for (const std::string& file : {four, eight}) {
    bench::need_data(file, "what nccl-tests prints of all-reduces on V100");
  }
  compare(four, 4, 4);
  compare(eight, 8, 6);
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
