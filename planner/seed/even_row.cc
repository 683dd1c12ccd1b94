// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/even_row.h"

#include "cost_model/network/link_model.h"
#include "ir/base/at.h"
#include "ir/base/largest_that_holds.h"
#include "ir/strategy/strategy.h"
#include "planner/evaluate/rough/step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace agpcs {
namespace {

constexpr double kFitsNowhere = std::numeric_limits<double>::infinity();
constexpr double kEnough = 1.001;  // the slowest stage is this near to the best
constexpr std::int64_t kSmall = 1 << 20, kLarge = 32 << 20;

template <typename F>
EvenLines::Line line_through(F seconds) {
  const double small = seconds(kSmall);
  const double per_byte = (seconds(kLarge) - small) / (kLarge - kSmall);
  return {std::max(0.0, small - per_byte * kSmall), per_byte};
}

}  // namespace

EvenLines::Look EvenLines::look_of(const std::vector<DeviceId>& devices) const {
  Look look;
  int host = -1;
  for (const DeviceId id : devices) {
    const Device& device = cluster_.devices[at(id)];
    const bool same = device.host == host && std::get<1>(look.back()) == device.kind;
    if (!same) look.emplace_back(class_of_[at(device.host)], device.kind, 0);
    ++std::get<2>(look.back());
    host = device.host;
  }
  std::sort(look.begin(), look.end());
  return look;
}

EvenLines::Line EvenLines::all_reduce(const std::vector<DeviceId>& devices) {
  if (devices.size() < 2) return {};
  const auto [entry, added] = reduces_.try_emplace(look_of(devices));
  if (added) {
    std::vector<DeviceId> ascending = devices;
    std::sort(ascending.begin(), ascending.end());
    entry->second = line_through(
        [&](std::int64_t bytes) { return all_reduce_seconds(cluster_, ascending, bytes); });
  }
  return entry->second;
}

EvenLines::Line EvenLines::between(const std::vector<DeviceId>& from,
                                   const std::vector<DeviceId>& to) {
  const auto host_of = [&](DeviceId id) { return cluster_.devices[at(id)].host; };
  const auto hosts_of = [&](const std::vector<DeviceId>& devices) {
    std::set<int> hosts;
    for (const DeviceId id : devices) hosts.insert(host_of(id));
    return static_cast<int>(hosts.size());
  };
  const DeviceId sender = from.back(), receiver = to.front();
  const bool inside = host_of(sender) == host_of(receiver);
  // All replicas of a host have one NIC, but each has ports of its own.
  const int lanes = inside ? static_cast<int>(std::min(from.size(), to.size()))
                           : std::min(hosts_of(from), hosts_of(to));
  const auto [entry, added] =
      links_.try_emplace({class_of_[at(host_of(sender))], class_of_[at(host_of(receiver))],
                          cluster_.devices[at(sender)].kind, lanes, inside});
  if (added) {
    entry->second = line_through([&](std::int64_t bytes) {
      return lone_seconds(cluster_, transfer(cluster_, sender, receiver, bytes));
    });
    entry->second.per_byte /= lanes;
  }
  return entry->second;
}

EvenRow::EvenRow(const Problem& problem, const PieceSums& sums, EvenLines& lines,
                 const std::vector<DeviceId>& devices, int replicas, int stages)
    : sums_(sums), batch_(problem.training.batch) {
  for (int s = 0; s < stages; ++s) {
    const auto first = devices.begin() + std::ptrdiff_t{s} * replicas;
    groups_.emplace_back(first, first + replicas);
    Group group;
    for (const DeviceId id : groups_.back()) {
      const int kind = problem.cluster.devices[at(id)].kind;
      if (group.members.empty() || group.members.back().kind != kind) {
        const std::int64_t memory = problem.cluster.kinds[at(kind)].memory_bytes;
        group.members.push_back({kind, 0, static_cast<double>(memory)});
      }
      group.members.back().devices += 1;
    }
    group.reduce = lines.all_reduce(groups_.back());
    costs_.push_back(std::move(group));
  }
  for (std::size_t s = 0; s + 1 < costs_.size(); ++s) {
    costs_[s].to_next = lines.between(groups_[s], groups_[s + 1]);
  }
  for (std::vector<DeviceId>& group : groups_) std::sort(group.begin(), group.end());
}

void EvenRow::set(int stages, std::int64_t micro_batches, double part_of_memory, bool offload) {
  stages_ = stages;
  micro_batches_ = static_cast<double>(micro_batches);
  samples_ = static_cast<double>(largest_micro_batch(batch_, micro_batches));
  part_of_memory_ = part_of_memory;
  offload_ = offload;
}

/// Returns the samples of a micro-batch that a device takes of a group with `rate`.
double EvenRow::share_of(const Member& member, const Group& group, int i, int j,
                         double rate) const {
  if (group.members.size() == 1) return std::ceil(samples_ / member.devices);
  const double slope = std::max(1e-15, sums_.seconds(member.kind, i, j).per_sample);
  return std::max(1.0, samples_ / (slope * rate));
}

bool EvenRow::fits(int i, int j, int stage, double rate, StageHelp help) const {
  const Group& group = costs_[at(stage)];
  const bool several = group.members.size() > 1 || group.members.front().devices > 1;
  const double in_flight = std::min(micro_batches_, static_cast<double>(stages_ - stage));
  for (const Member& member : group.members) {
    const double share = share_of(member, group, i, j, rate);
    const double bytes = sums_.memory(i, j, share, in_flight, several, help);
    if (bytes > part_of_memory_ * member.memory) return false;
  }
  return true;
}

double EvenRow::stage_seconds(int i, int j, int stage) const {
  const Group& group = costs_[at(stage)];
  double rate = 0, fixed = 0, slope = 0;
  for (const Member& member : group.members) {
    const PieceSums::Line line = sums_.seconds(member.kind, i, j);
    slope = std::max(1e-15, line.per_sample);
    rate += member.devices / slope;
    fixed = std::max(fixed, line.fixed);
  }
  const bool alike = group.members.size() == 1;  // some device has the odd sample
  const double slowest =
      alike ? std::ceil(samples_ / group.members.front().devices) * slope : samples_ / rate;
  double seconds = fixed + slowest;
  HostSeconds hosts;
  if (offload_) {
    hosts = {sums_.copy_seconds(group.members, i, j) / micro_batches_, 0};
    for (const Member& member : group.members) {
      const double share = share_of(member, group, i, j, rate);
      hosts.activations =
          std::max(hosts.activations, sums_.move_seconds(member.kind, i, j, share, seconds));
    }
  }
  seconds = seconds_with_help(seconds, hosts,
                              [&](StageHelp help) { return fits(i, j, stage, rate, help); });
  const double bytes = sums_.gradient_bytes(i, j);
  return seconds + (bytes > 0 ? group.reduce.at(bytes) / micro_batches_ : 0);
}

/// Returns the farthest end of a stage that begins at `begin`, or `begin` if there is none.
int EvenRow::end_within(int begin, int stage, double seconds) const {
  int low = largest_that_holds(begin, sums_.pieces() + 1, [&](int end) {
    return stage_seconds(begin, end, stage) <= seconds;
  });
  const auto cut_is_slow = [&](int end) {
    return end < sums_.pieces() &&
           costs_[at(stage)].to_next.at(sums_.cut_bytes(end) * samples_) > seconds;
  };
  while (low > begin && cut_is_slow(low)) --low;
  return low;
}

/// Gives every stage as many pieces as it computes within `seconds`, the first stage first.
std::vector<int> EvenRow::cut_within(double seconds) const {
  std::vector<int> bounds = {0};
  for (int stage = 0; stage < stages_ && bounds.back() < sums_.pieces(); ++stage) {
    const int end = end_within(bounds.back(), stage, seconds);
    if (end == bounds.back()) return {};
    bounds.push_back(end);
  }
  if (bounds.back() < sums_.pieces()) return {};
  return bounds;
}

EvenCut EvenRow::cut(int stages, std::int64_t micro_batches, double part_of_memory, bool offload) {
  set(stages, micro_batches, part_of_memory, offload);
  EvenCut best = {kFitsNowhere, cut_within(std::numeric_limits<double>::max())};
  if (best.bounds.empty()) return best;
  const auto slowest = [&](const std::vector<int>& bounds) {
    double most = 0;
    for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
      most = std::max(most, stage_seconds(bounds[s], bounds[s + 1], static_cast<int>(s)));
      if (s + 2 == bounds.size()) break;
      most = std::max(most, costs_[s].to_next.at(sums_.cut_bytes(bounds[s + 1]) * samples_));
    }
    return most;
  };
  best.seconds = slowest(best.bounds);
  double low = 0;
  while (best.seconds > kEnough * low) {
    // The mean of both, nearer to the lower end while that is not known.
    const double middle = low > 0 ? (low + best.seconds) / 2 : best.seconds / 2;
    std::vector<int> bounds = cut_within(middle);
    if (bounds.empty()) {
      low = middle;
      continue;
    }
    best.seconds = std::min(middle, slowest(bounds));
    best.bounds = std::move(bounds);
  }
  return best;
}

bool EvenRow::has_cut(int stages, std::int64_t micro_batches, double part_of_memory, bool offload) {
  set(stages, micro_batches, part_of_memory, offload);
  return !cut_within(std::numeric_limits<double>::max()).empty();
}

}  // namespace agpcs
