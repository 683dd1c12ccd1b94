// SPDX-License-Identifier: Apache-2.0
// Grouping of gradients: steps of our grouping, of other tools' and a lower bound, in milliseconds.
//     build/release/tests/grouping_bench PROFILES MEASUREMENTS
//
// PROFILES is a folder of profiled graphs with backward times beside gradient sizes
// (tests/bench/support/pipedream.h), MEASUREMENTS one of all-reduces measured on V100 (as of
// allreduce_vs_nccl). All-reduces run one at a time beside backward. A step ends when backward and
// the last all-reduce have.
//
// Assumed: the curve is straight between measured sizes, and
// goes on below the smallest (1 MiB) as between the two smallest, so that nothing takes 39 us on 4
// GPUs and 59 us on 8. "x4" takes the curve four times as long.
//
// tensor: one bucket a tensor. 25MB: packed in backward order. 128MiB: whenever the channel is
// free, what is ready, in the order of readiness, up to 128 MiB (Horovod, without its cycle time).
// Exits with 1 if ours is worse than any of these, or more than 1% above the bound.
#include "planner/evaluate/bucket_schedule.h"
#include "tests/bench/planning/grouping_bound.h"
#include "tests/bench/support/mistakes.h"
#include "tests/bench/support/pipedream.h"
#include "tests/support/builders.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using testing::CostCurve;

/// Lines of "size(B),count,type,time(ns),...", each time `slower` times as long.
CostCurve read_curve(const std::filesystem::path& path, double slower) {
  std::ifstream file(path);
  CostCurve curve;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = testing::split(line, ',');
    if (fields.size() < 4) continue;
    curve.points.push_back({std::stoll(fields[0]), std::stod(fields[3]) * 1e-9 * slower});
  }
  const CostLine first = CostCurve::line(curve.points[0], curve.points[1]);
  curve.points.insert(curve.points.begin(), {0, first.seconds});
  return curve;
}

BucketCounts packed(const ProfiledModel& model, std::int64_t most) {
  BucketCounts counts;
  std::int64_t bytes = 0;
  for (const ReadyGradient& gradient : model.gradients) {
    if (counts.empty() || bytes + gradient.bytes > most) {
      counts.push_back(0);
      bytes = 0;
    }
    ++counts.back();
    bytes += gradient.bytes;
  }
  return counts;
}

BucketCounts fused_when_ready(const ProfiledModel& model, std::int64_t most,
                              const CostCurve& curve) {
  BucketCounts counts;
  double free = 0;
  for (std::size_t i = 0; i < model.gradients.size();) {
    free = std::max(free, model.gradients[i].ready);
    std::int64_t bytes = 0;
    counts.push_back(0);
    while (i < model.gradients.size() && model.gradients[i].ready <= free &&
           (bytes == 0 || bytes + model.gradients[i].bytes <= most)) {
      bytes += model.gradients[i++].bytes;
      ++counts.back();
    }
    free += curve(bytes);
  }
  return counts;
}

/// One line of the table; whether ours is good enough.
bool print_row(const std::string& name, const ProfiledModel& model, int gpus, int slower,
               const CostCurve& curve) {
  const auto step = [&](const BucketCounts& counts) {
    return std::max(model.compute, end_of_buckets(model.gradients, counts, curve));
  };
  const BucketCounts planned = schedule_buckets_of(model.gradients, curve);
  const double ours = step(planned);
  const double others[] = {step(BucketCounts(model.gradients.size(), 1)),
                           step(packed(model, 25'000'000)),
                           step(fused_when_ready(model, std::int64_t{128} << 20, curve))};
  const double bound = std::max(model.compute, testing::earliest_end(model.gradients, curve));
  fmt::print(
      "{:<14} {:>4} x{:<3} {:>9.3f} {:>7} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} "
      "{:>7.3f}%\n",
      name, gpus, slower, ours * 1e3, planned.size(), others[0] * 1e3, others[1] * 1e3,
      others[2] * 1e3, bound * 1e3, (ours - model.compute) * 1e3, 100 * (ours / bound - 1));
  bool good = ours <= 1.01 * bound;
  for (const double other : others) good = good && ours <= other * (1 + 1e-12);
  return good;
}

int run(const std::filesystem::path& profiles, const std::filesystem::path& measurements) {
  bench::need_data(profiles, "a folder of PipeDream's profiled graphs");
  bench::need_data(measurements, "a folder of what nccl-tests prints of all-reduces on V100");
  fmt::print("{:<14} {:>4} {:<4} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}\n", "model",
             "GPUs", "", "ours ms", "buckets", "tensor", "25MB", "128MiB", "bound", "exposed",
             "over it");
  bool good = true;
  for (const char* name : {"resnet50", "squeezenet1_0", "vgg16"}) {
    const ProfiledModel model = read_pipedream(profiles / (std::string(name) + ".txt"));
    for (const int gpus : {4, 8}) {
      for (const int slower : {1, 4, 16}) {
        const std::string curve = fmt::format("v100_allreduce_{}gpu.txt", gpus);
        good &= print_row(name, model, gpus, slower, read_curve(measurements / curve, slower));
      }
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  if (argc != 3) {
    agpcs::bench::end_with_usage("grouping_bench", "two folders are needed",
                                 "PROFILES MEASUREMENTS, of PipeDream and of nccl-tests");
  }
  return agpcs::run(argv[1], argv[2]);
}
