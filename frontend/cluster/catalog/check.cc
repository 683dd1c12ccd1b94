// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/catalog/check.h"

#include <fmt/format.h>

#include <utility>

namespace agpcs {
namespace {

// Vendors round peaks and clocks, and publish peaks of boards at clocks a little lower than the
// highest one. A peak with sparsity, or one that accumulates in fp16, is off by a factor of two.
constexpr double kMostAbove = 1.05;
constexpr double kLeast = 0.95;
// Products of matrices may be stated at a lower clock: H100 NVL at 0.87 of its boost clock.
constexpr double kLeastOfMatrices = 0.85;

void check_peak(const AcceleratorKind& a, const std::string& precision, double peak,
                std::vector<std::string>& messages) {
  if (a.processors == 0 || a.boost_clock == 0) return;
  const auto lanes = a.lanes.find(precision);
  if (lanes == a.lanes.end()) {
    messages.push_back(fmt::format("has a peak for {}, but architecture '{}' has no lanes for it",
                                   precision, a.architecture));
    return;
  }
  const double computed = 2 * lanes->second * a.processors * a.boost_clock;
  const double least = precision == "fp32" ? kLeast : kLeastOfMatrices;
  if (peak <= kMostAbove * computed && peak >= least * computed) return;
  messages.push_back(fmt::format(
      "has a peak of {:.4g}TFLOPS for {}, but 2 x {} lanes x {} processors x {:g}MHz are "
      "{:.4g}TFLOPS",
      peak / 1e12, precision, lanes->second, a.processors, a.boost_clock / 1e6, computed / 1e12));
}

void check_order(const AcceleratorKind& a, std::vector<std::string>& messages) {
  constexpr std::pair<const char*, const char*> kSlowerFirst[] = {
      {"fp32", "tf32"}, {"tf32", "fp16"}, {"tf32", "bf16"}, {"fp32", "fp16"}, {"fp32", "bf16"}};
  for (const auto& [slower, faster] : kSlowerFirst) {
    const auto low = a.peak.find(slower);
    const auto high = a.peak.find(faster);
    if (low == a.peak.end() || high == a.peak.end()) continue;
    // Rounded figures of equal rates may differ.
    if (low->second <= high->second * 1.01) continue;
    messages.push_back(fmt::format("is slower in {} than in {}", faster, slower));
  }
}

}  // namespace

std::vector<std::string> implausible_figures(const AcceleratorKind& a) {
  std::vector<std::string> messages;
  const auto need = [&](bool there, const char* key) {
    if (!there) messages.push_back(fmt::format("lacks '{}'", key));
  };
  need(a.memory > 0, "memory");
  need(!a.memory_type.empty(), "memory_type");
  need(a.memory_bandwidth > 0, "memory_bandwidth");
  need(!a.peak.empty(), "peak");
  for (const auto& [precision, peak] : a.peak) check_peak(a, precision, peak, messages);
  check_order(a, messages);
  return messages;
}

}  // namespace agpcs
