// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/shares.h"

#include "ir/base/at.h"
#include "ir/base/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <memory_resource>
#include <numeric>
#include <span>
#include <utility>

namespace agpcs {
namespace {

int kind_of(const Problem& problem, DeviceId device) {
  return problem.cluster.devices[at(device)].kind;
}

/// Memory for the lists of one call: that of few devices lies on the stack.
class Scratch {
 public:
  std::pmr::memory_resource* memory() { return &memory_; }

 private:
  std::array<std::byte, 4096> room_;
  std::pmr::monotonic_buffer_resource memory_{room_.data(), room_.size()};
};

/// The seconds of devices. Neighbours often ask for the same as the one before.
class DeviceSeconds {
 public:
  DeviceSeconds(const Problem& problem, StageTimer& timer) : problem_(problem), timer_(timer) {}
  double of(DeviceId device, std::int64_t samples) {
    const int kind = kind_of(problem_, device);
    if (kind == kind_ && samples == samples_) return seconds_;
    kind_ = kind;
    samples_ = samples;
    return seconds_ = timer_.seconds(kind, samples);
  }

 private:
  const Problem& problem_;
  StageTimer& timer_;
  int kind_ = kNone;
  std::int64_t samples_ = 0;
  double seconds_ = 0;
};

/// Sets `result` to samples per second at `shares`. A device without samples is judged by one
/// sample.
void find_speeds(const Problem& problem, StageTimer& timer, const std::vector<DeviceId>& devices,
                 const std::vector<std::int64_t>& shares, std::pmr::vector<double>& result) {
  result.clear();
  DeviceSeconds seconds(problem, timer);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::int64_t samples = std::max<std::int64_t>(shares[i], 1);
    const double own = seconds.of(devices[i], samples);
    result.push_back(own > 0 ? static_cast<double>(samples) / own : 1);
  }
}

/// Returns whether micro-batches of `samples` samples are the larger ones of two sizes. Numbers of
/// micro-batches that are not asked for are such that the size tells (`micro_batch_numbers`).
bool has_smaller(const Problem& problem, std::int64_t samples) {
  const std::int64_t asked = problem.options.micro_batches;
  return problem.training.batch % (asked > 0 ? asked : samples) != 0;
}

/// Moves single samples away from the slowest device as long as that makes the slowest one faster.
class Leveller {
 public:
  Leveller(const Problem& problem, StageTimer& timer, const std::vector<DeviceId>& devices,
           std::vector<std::int64_t>& shares, std::pmr::memory_resource* memory)
      : now_seconds_(problem, timer),
        seconds_with_one_more_(problem, timer),
        devices_(devices),
        shares_(shares),
        now_(memory),
        with_one_more_(memory) {
    now_.reserve(devices.size() + kMoves);
    with_one_more_.reserve(devices.size() + kMoves);
    for (std::size_t i = 0; i < devices.size(); ++i) {
      now_.push_back(now(i));
      with_one_more_.push_back(with_one_more(i));
    }
    std::make_heap(now_.begin(), now_.end(), std::greater<>());
    std::make_heap(with_one_more_.begin(), with_one_more_.end(), std::greater<>());
  }

  void run() {
    for (std::size_t moves = 0; moves < 4 * devices_.size(); ++moves) {
      const auto [now, slowest] = least(now_, [this](std::size_t i) { return this->now(i); });
      const auto [then, target] =
          least(with_one_more_, [this](std::size_t i) { return with_one_more(i); });
      if (then >= -now) return;
      move(slowest, -1);
      move(target, 1);
    }
  }

 private:
  using Entry = std::pair<double, std::size_t>;  // seconds and device; the least is next
  static constexpr std::size_t kMoves = 8;       // few are made, so this many seldom need more room

  Entry now(std::size_t i) {
    return {shares_[i] == 0 ? -0.0 : -now_seconds_.of(devices_[i], shares_[i]), i};
  }
  Entry with_one_more(std::size_t i) {
    return {seconds_with_one_more_.of(devices_[i], shares_[i] + 1), i};
  }

  static void push(std::pmr::vector<Entry>& heap, Entry entry) {
    heap.push_back(entry);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  /// Returns the least entry of a heap, once those that no longer hold are gone.
  template <typename F>
  static Entry least(std::pmr::vector<Entry>& heap, F holds) {
    while (holds(heap.front().second) != heap.front()) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      heap.pop_back();
    }
    return heap.front();
  }
  void move(std::size_t i, std::int64_t samples) {
    shares_[i] += samples;
    push(now_, now(i));
    push(with_one_more_, with_one_more(i));
  }

  DeviceSeconds now_seconds_, seconds_with_one_more_;
  const std::vector<DeviceId>& devices_;
  std::vector<std::int64_t>& shares_;
  // Heaps, with an entry for each device and more that held before: the slowest first, and the
  // fastest with one more; ties to the lower index.
  std::pmr::vector<Entry> now_, with_one_more_;
};

/// Sets `shares` to what `largest_remainder` returns.
void divide_by_largest_remainder(std::int64_t total, std::span<const double> weights,
                                 std::pmr::memory_resource* memory,
                                 std::vector<std::int64_t>& shares) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  AGPCS_CHECK(sum > 0, "{} samples for {} weights that sum to {}", total, weights.size(), sum);
  shares.clear();
  shares.reserve(weights.size());
  std::pmr::vector<double> remainders(memory);
  remainders.reserve(weights.size());
  std::int64_t left = total;
  for (const double weight : weights) {
    const double exact = static_cast<double>(total) * (weight / sum);
    shares.push_back(static_cast<std::int64_t>(std::floor(exact)));
    remainders.push_back(exact - std::floor(exact));
    left -= shares.back();
  }
  if (left == 0) return;
  std::pmr::vector<std::size_t> order(weights.size(), memory);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return remainders[a] > remainders[b] || (remainders[a] == remainders[b] && a < b);
  });
  for (std::size_t i = 0; left > 0; ++i, --left) ++shares[order[i % order.size()]];
  for (std::size_t i = 0; left < 0; ++i) {  // rounding of the products may have given one too many
    std::int64_t& share = shares[order[order.size() - 1 - i % order.size()]];
    if (share > 0) --share, ++left;
  }
}

}  // namespace

std::vector<std::int64_t> largest_remainder(std::int64_t total,
                                            const std::vector<double>& weights) {
  Scratch scratch;
  std::vector<std::int64_t> shares;
  divide_by_largest_remainder(total, weights, scratch.memory(), shares);
  return shares;
}

std::int64_t largest_micro_batch(const Problem& problem, std::int64_t micro_batches) {
  return largest_micro_batch(problem.training.batch, micro_batches);
}

namespace {

std::pmr::vector<StageTimer::KindRun> kind_runs(const Problem& problem,
                                                const std::vector<DeviceId>& devices,
                                                std::pmr::memory_resource* memory) {
  std::pmr::vector<StageTimer::KindRun> runs(memory);
  for (const DeviceId device : devices) {
    const int kind = kind_of(problem, device);
    if (runs.empty() || runs.back().kind != kind) runs.push_back({kind, 0});
    ++runs.back().devices;
  }
  return runs;
}

void write_runs(const std::vector<std::int64_t>& shares,
                std::pmr::vector<StageTimer::ShareRun>& runs) {
  for (const std::int64_t share : shares) {
    if (runs.empty() || runs.back().samples != share) runs.push_back({share, 0});
    ++runs.back().devices;
  }
}

std::vector<std::int64_t> make_balanced_shares(const Problem& problem, StageTimer& timer,
                                               const std::vector<DeviceId>& devices,
                                               std::int64_t samples, Scratch& scratch) {
  const std::int64_t even =
      std::max<std::int64_t>(1, samples / static_cast<std::int64_t>(devices.size()));
  std::vector<std::int64_t> shares(devices.size(), even);
  std::pmr::vector<double> speeds(scratch.memory());
  speeds.reserve(devices.size());
  for (int round = 0; round < 2; ++round) {  // the speed depends on the share
    find_speeds(problem, timer, devices, shares, speeds);
    divide_by_largest_remainder(samples, speeds, scratch.memory(), shares);
  }
  Leveller(problem, timer, devices, shares, scratch.memory()).run();
  return shares;
}

/// Shares follow from the kinds of the devices, in their order.
StageSpec balanced_shares(const Problem& problem, StageTimer& timer,
                          const std::vector<DeviceId>& devices, std::int64_t samples) {
  Scratch scratch;
  std::pmr::vector<StageTimer::ShareRun>& runs =
      timer.known_shares(kind_runs(problem, devices, scratch.memory()), samples);
  if (runs.empty()) {
    write_runs(make_balanced_shares(problem, timer, devices, samples, scratch), runs);
  }
  StageSpec spec;
  spec.devices.reserve(devices.size());
  spec.shares.reserve(devices.size());
  auto device = devices.begin();
  for (const auto& [share, count] : runs) {
    const auto end = device + static_cast<std::ptrdiff_t>(count);
    if (share > 0) {
      spec.devices.insert(spec.devices.end(), device, end);
      spec.shares.insert(spec.shares.end(), count, share);
    }
    device = end;
  }
  return spec;
}

/// Makes the slowest device with two samples the odd one. Returns false if there is none.
bool choose_odd(const Problem& problem, StageTimer& timer, StageSpec& spec) {
  double slowest = -1;
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    if (spec.shares[i] < 2) continue;
    const double seconds = timer.seconds(kind_of(problem, spec.devices[i]), spec.shares[i]);
    if (seconds <= slowest) continue;
    slowest = seconds;
    spec.odd = spec.devices[i];
  }
  return slowest >= 0;
}

/// Takes out the device that is slowest with one sample, and gives its sample to the fastest.
void spare_a_sample(const Problem& problem, StageTimer& timer, StageSpec& spec) {
  const auto seconds = [&](DeviceId device) { return timer.seconds(kind_of(problem, device), 1); };
  const auto slower = [&](DeviceId a, DeviceId b) { return seconds(a) < seconds(b); };
  const auto out = std::max_element(spec.devices.begin(), spec.devices.end(), slower);
  spec.shares.pop_back();
  spec.devices.erase(out);
  const auto in = std::min_element(spec.devices.begin(), spec.devices.end(), slower);
  ++spec.shares[static_cast<std::size_t>(in - spec.devices.begin())];
}

}  // namespace

StageSpec balanced_stage(const Problem& problem, StageTimer& timer,
                         const std::vector<DeviceId>& devices, std::int64_t samples) {
  StageSpec spec = balanced_shares(problem, timer, devices, samples);
  if (has_smaller(problem, samples) && !choose_odd(problem, timer, spec)) {
    spare_a_sample(problem, timer, spec);
    choose_odd(problem, timer, spec);
  }
  return spec;
}

std::optional<StageSpec> balanced_stage_within(const Problem& problem, StageTimer& timer,
                                               const std::vector<DeviceId>& devices,
                                               std::int64_t samples,
                                               const std::vector<std::int64_t>& most) {
  std::map<DeviceId, std::int64_t> most_of, share_of;
  std::vector<DeviceId> open;  // devices that are not known to take the most that they may
  for (std::size_t i = 0; i < devices.size(); ++i) {
    most_of[devices[i]] = most[i];
    if (most[i] > 0) open.push_back(devices[i]);
  }
  std::int64_t left = samples;
  for (bool changed = true; changed && left > 0;) {
    if (open.empty()) return std::nullopt;
    const StageSpec spec = balanced_shares(problem, timer, open, left);
    changed = false;
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const DeviceId device = spec.devices[i];
      share_of[device] = spec.shares[i];
      if (spec.shares[i] <= most_of[device]) continue;
      share_of[device] = most_of[device];
      left -= most_of[device];
      std::erase(open, device);
      changed = true;
    }
    if (changed) {
      for (const DeviceId device : open) share_of.erase(device);
    }
  }
  if (left < 0) return std::nullopt;
  StageSpec result;
  for (const auto& [device, share] : share_of) {
    result.devices.push_back(device);
    result.shares.push_back(share);
  }
  if (has_smaller(problem, samples) && !choose_odd(problem, timer, result)) return std::nullopt;
  return result;
}

StageSpec equal_stage(const Problem& problem, const std::vector<DeviceId>& devices,
                      std::int64_t samples) {
  const std::int64_t most = has_smaller(problem, samples) ? samples - 1 : samples;
  const std::size_t count = std::min(devices.size(), static_cast<std::size_t>(most));
  const std::vector<std::int64_t> shares =
      largest_remainder(samples, std::vector<double>(count, 1.0));
  StageSpec spec;
  for (std::size_t i = 0; i < count; ++i) {
    if (shares[i] == 0) continue;
    spec.devices.push_back(devices[i]);
    spec.shares.push_back(shares[i]);
  }
  return spec;
}

double slowest_seconds(const Problem& problem, StageTimer& timer, const StageSpec& spec) {
  double slowest = 0;
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    const int kind = kind_of(problem, spec.devices[i]);
    const double again =
        spec.recompute ? spec.recompute.part() * timer.forward_seconds(kind, spec.shares[i]) : 0;
    slowest = std::max(slowest, timer.seconds(kind, spec.shares[i]) + again);
  }
  return slowest;
}

std::vector<std::vector<OpId>> ops_of_stages(const std::vector<int>& stage_of, int stages) {
  std::vector<std::size_t> counts(at(stages));
  for (const int stage : stage_of) ++counts[at(stage)];
  std::vector<std::vector<OpId>> ops(counts.size());
  std::vector<OpId*> next(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops[i].resize(counts[i]);
    next[i] = ops[i].data();
  }
  for (OpId id = 0; id < static_cast<OpId>(stage_of.size()); ++id) {
    *next[at(stage_of[at(id)])]++ = id;
  }
  return ops;
}

std::vector<OpId> all_ops(const Problem& problem) {
  std::vector<OpId> ops(problem.graph.ops.size());
  std::iota(ops.begin(), ops.end(), 0);
  return ops;
}

}  // namespace agpcs
