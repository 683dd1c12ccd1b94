// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/network/pace.h"

#include "ir/base/check.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace agpcs {
namespace {

constexpr int kBlocks = 5, kFewestBlocks = 3;
constexpr double kMostRepetitions = 1e6;
constexpr std::int64_t kLatencyAlone = 1024;  // bytes; up to this size only latency counts
// Values that the leader sends instead of a number of repetitions.
constexpr std::int64_t kNextSize = 0, kNoMore = -1;

/// Returns the seconds of one of `times` repetitions. Only the leader calls it.
Result<double> time_block(Repeated& work, std::int64_t bytes, std::int64_t times) {
  AGPCS_RETURN_IF_ERROR(work.agree(times).status());
  const auto begin = std::chrono::steady_clock::now();
  AGPCS_RETURN_IF_ERROR(work.repeat(bytes, times));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return seconds.count() / static_cast<double>(times);
}

std::int64_t repetitions(double block_seconds, double one) {
  const double times = std::round(block_seconds / std::max(one, 1e-9));
  return static_cast<std::int64_t>(std::clamp(times, 1.0, kMostRepetitions));
}

Result<Measured> time_size(Repeated& work, std::int64_t bytes, const Pace& pace) {
  AGPCS_RETURN_IF_ERROR(time_block(work, bytes, 1).status());
  AGPCS_TRY(double one, time_block(work, bytes, 1));
  const double block = pace.seconds / kBlocks;
  std::vector<double> means;
  double elapsed = 0;
  if (one >= block) {
    means.push_back(one);
    elapsed = one;
  }
  while (means.size() < kFewestBlocks || elapsed < pace.seconds) {
    const std::int64_t times = repetitions(block, one);
    AGPCS_TRY(one, time_block(work, bytes, times));
    means.push_back(one);
    elapsed += one * static_cast<double>(times);
  }
  return summarize(std::move(means));
}

/// Returns the seconds of `bytes` at the bandwidth of `smaller`, as if its time had no latency in
/// it.
double expected(const MeasuredMessages& smaller, std::int64_t bytes) {
  const std::int64_t known = std::max(smaller.bytes, kLatencyAlone);
  return smaller.time.seconds *
         std::max(1.0, static_cast<double>(bytes) / static_cast<double>(known));
}

Result<std::vector<MeasuredMessages>> lead(Repeated& work, const std::vector<std::int64_t>& sizes,
                                           const Pace& pace) {
  std::vector<MeasuredMessages> points;
  for (const std::int64_t bytes : sizes) {
    if (!points.empty() && expected(points.back(), bytes) > pace.longest) break;
    AGPCS_TRY(const Measured time, time_size(work, bytes, pace));
    points.push_back({bytes, time});
    AGPCS_RETURN_IF_ERROR(work.agree(kNextSize).status());
  }
  AGPCS_RETURN_IF_ERROR(work.agree(kNoMore).status());
  return points;
}

Status follow(Repeated& work, const std::vector<std::int64_t>& sizes) {
  std::size_t size = 0;
  while (true) {
    AGPCS_TRY(const std::int64_t said, work.agree(0));
    if (said == kNoMore) return {};
    if (said == kNextSize) {
      ++size;
      continue;
    }
    AGPCS_CHECK(size < sizes.size(), "size {} of {}", size, sizes.size());
    AGPCS_RETURN_IF_ERROR(work.repeat(sizes[size], said));
  }
}

/// Returns the value below which `fraction` of the sorted values lie, interpolated.
double quantile(const std::vector<double>& sorted, double fraction) {
  const double at = fraction * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace

Measured summarize(std::vector<double> values) {
  AGPCS_CHECK(!values.empty(), "a median of nothing");
  std::sort(values.begin(), values.end());
  const double median = quantile(values, 0.5);
  const double range = quantile(values, 0.75) - quantile(values, 0.25);
  return {median, median > 0 ? range / median : 0};
}

Result<std::vector<MeasuredMessages>> measure_sizes(Repeated& work,
                                                    const std::vector<std::int64_t>& sizes,
                                                    const Pace& pace) {
  if (work.leads()) return lead(work, sizes, pace);
  AGPCS_RETURN_IF_ERROR(follow(work, sizes));
  return std::vector<MeasuredMessages>();
}

}  // namespace agpcs
