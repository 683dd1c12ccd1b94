// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/collective_lines.h"

#include "cost_model/network/link_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace agpcs {
namespace {

constexpr std::int64_t kSizes[] = {0, std::int64_t{1} << 16, std::int64_t{1} << 20,
                                   std::int64_t{1} << 30};

/// Returns whether the lines are equal, but for rounding, at every size that matters.
bool same(const CostLine& a, const CostLine& b) {
  const auto near = [&](std::int64_t bytes) {
    return std::abs(a.of(bytes) - b.of(bytes)) <= 1e-4 * b.of(bytes);
  };
  return near(kSizes[0]) && near(kSizes[3]);
}

}  // namespace

std::vector<CostLine> collective_lines(const Cluster& cluster,
                                       const std::vector<DeviceId>& devices) {
  if (devices.size() < 2) return {CostLine()};
  std::vector<CostLine> lines;
  for (const AllReduce algorithm : kAllReduces) {
    const auto seconds = [&](std::int64_t bytes) {
      return lone_seconds(cluster, all_reduce(cluster, devices, algorithm, bytes));
    };
    double last = seconds(kSizes[0]);
    for (std::size_t s = 1; s < std::size(kSizes); ++s) {
      const double next = seconds(kSizes[s]);
      const auto from = static_cast<double>(kSizes[s - 1]), to = static_cast<double>(kSizes[s]);
      const double per_byte = (next - last) / (to - from);
      const CostLine line = {std::max(0.0, last - per_byte * from), per_byte};
      const bool known = std::any_of(lines.begin(), lines.end(),
                                     [&](const CostLine& other) { return same(line, other); });
      if (!known) lines.push_back(line);
      last = next;
    }
  }
  return lines;
}

}  // namespace agpcs
