// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/step_tails.h"

#include "ir/base/at.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace agpcs {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Tails {
 public:
  Tails(const Cluster& cluster, const Strategy& strategy, const PartitionInfo& partition,
        const StepReplicas& replicas, bool parted, FlatStep& step)
      : cluster_(cluster),
        strategy_(strategy),
        partition_(partition),
        replicas_(replicas),
        equals_(replicas.equals()),
        parted_(parted),
        step_(step),
        heads_(partition.stages.size()) {
    step_.tails.assign(step.times.size(), 0);
  }

  void add_sums(const std::vector<StepBucket>& buckets) {
    for (const Exchange* const collective : step_.collectives) {
      step_.least_seconds.push_back(least_seconds(cluster_, *collective));
    }
    sums_.resize(partition_.stages.size());
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (buckets[b].shared != nullptr) continue;
      std::vector<Sums>& of_members = sums_[at(buckets[b].stage)];
      of_members.resize(std::max<std::size_t>(1, buckets[b].members.size()));
      for (std::size_t m = 1; m < of_members.size(); ++m) {
        const std::size_t further = at(step_.further_first[b]) + m - 1;
        of_members[m].add(b, step_.least_seconds[2 * buckets.size() + 2 + further]);
      }
      Sums& own = of_members[0];
      own.add(b, step_.least_seconds[b]);
      const std::size_t gather = buckets.size() + 2 + b;
      // Parameters that are divided travel before passes, not after the update.
      const bool before = buckets[b].state == StateLevel::kParameters;
      if (before || gather >= step_.collectives.size()) continue;
      own.gathers += step_.least_seconds[gather];
    }
  }

  /// Stages only wait for tensors of earlier ones.
  double run() {
    double bound = 0;
    for (int stage = 0; stage < static_cast<int>(heads_.size()); ++stage) {
      set_head(stage);
      find_gradient_messages(stage);
      for_each_of(stage, [&](std::size_t i) {
        step_.tails[i] = own_tail(stage, i);
        if (!parted_) step_.tails[i] = std::max(step_.tails[i], after_gradients(stage, i));
        const FlatTimes& times = step_.times[i];
        const double larger = times.forward + times.backward + times.weight;
        const double smaller =
            times.smaller_forward + times.smaller_backward + times.smaller_weight;
        const double passes = step_.smaller_from * larger +
                              (step_.micro_batches - step_.smaller_from) * smaller + times.step_end;
        bound = std::max(bound, heads_[at(stage)] + times.begin + passes + step_.tails[i]);
      });
    }
    return bound;
  }

 private:
  struct Sums {
    std::vector<std::size_t> buckets;
    std::vector<double> seconds;  // by `buckets`
    double all = 0, gathers = 0;
    void add(std::size_t bucket, double own) {
      buckets.push_back(bucket);
      seconds.push_back(own);
      all += own;
    }
  };

  template <typename F>
  void for_each_of(int stage, F f) const {
    for (std::size_t i = 0; i < equals_.size(); ++i) {
      if (equals_[i].stage == stage) f(i);
    }
  }

  void set_head(int stage) {
    for (const CutInfo& cut : partition_.cuts) {
      if (cut.to != stage) continue;
      double least = kNever;
      for_each_of(cut.from, [&](std::size_t i) {
        const FlatTimes& times = step_.times[i];
        least = std::min(least, heads_[at(cut.from)] + times.begin + times.forward);
      });
      const std::vector<double> messages =
          messages_of(cut.forward, stage, cut.from, Way::kReceived, Size::kLarger);
      double first = kNever;
      for_each_of(stage, [&](std::size_t i) { first = std::min(first, messages[i]); });
      heads_[at(stage)] = std::max(heads_[at(stage)], least + first);
    }
  }

  void find_gradient_messages(int stage) {
    gradient_messages_.clear();
    for (const CutInfo& cut : partition_.cuts) {
      if (cut.to != stage || !cut.has_gradient()) continue;
      gradient_messages_.push_back(
          messages_of(cut.back, stage, cut.from, Way::kSent, Size::kSmaller));
    }
  }

  enum class Way : std::uint8_t { kSent, kReceived };
  enum class Size : std::uint8_t { kLarger, kSmaller };

  std::int64_t samples_of(int stage, std::size_t replica, Size size) const {
    const bool less = size == Size::kSmaller && replicas_.odd_of(stage) == replica;
    return strategy_.stages[at(stage)].shares[replica] - (less ? 1 : 0);
  }

  /// Returns, by times, the least seconds from when the first message of a pass can begin until all
  /// have arrived that a replica of `stage` sends to the replicas of `other`, or receives from
  /// them. What is sent as a whole does not count, nor what teams send.
  std::vector<double> messages_of(const CutBytes& bytes, int stage, int other, Way way,
                                  Size size) const {
    const StageSpec &here = strategy_.stages[at(stage)], &there = strategy_.stages[at(other)];
    std::vector<double> least(equals_.size(), kNever);
    if (here.has_teams() || there.has_teams() || !bytes.rows) {
      std::ranges::fill(least, 0);
      return least;
    }
    std::int64_t begin = 0, first_there = 0;  // rows
    std::size_t first = 0;
    for (std::size_t i = 0; i < here.devices.size(); ++i) {
      const std::int64_t end = begin + samples_of(stage, i, size);
      Carried carried;
      std::int64_t from = first_there;
      for (std::size_t j = first; j < there.devices.size() && from < end; ++j) {
        const std::int64_t to = from + samples_of(other, j, size);
        const std::int64_t rows = std::min(end, to) - std::max(begin, from);
        if (rows > 0) add(here.devices[i], there.devices[j], way, rows * bytes.row_bytes, carried);
        if (to <= end) {
          first = j + 1;
          first_there = to;
        }
        from = to;
      }
      double& own = least[at(replicas_.index_of(stage, i))];
      own = std::min(own, seconds_of(here.devices[i], way, carried));
      begin = end;
    }
    return least;
  }

  /// What a device's port carries, and of that, the link of its host towards other hosts.
  struct Carried {
    std::int64_t bytes = 0, outside = 0;
    LinkId link = kNone;
  };

  void add(DeviceId device, DeviceId other, Way way, std::int64_t bytes, Carried& carried) const {
    carried.bytes += bytes;
    const int here = cluster_.devices[at(device)].host, there = cluster_.devices[at(other)].host;
    if (here == there) return;
    const std::size_t hosts = cluster_.hosts.size();
    const bool sent = way == Way::kSent;
    const std::vector<LinkId>& route =
        cluster_.host_routes[sent ? at(here) * hosts + at(there) : at(there) * hosts + at(here)];
    if (route.empty()) return;
    const LinkId link = sent ? route.front() : route.back();
    if (carried.link == kNone) carried.link = link;
    if (carried.link == link) carried.outside += bytes;
  }

  double seconds_of(DeviceId id, Way way, const Carried& carried) const {
    if (carried.bytes == 0) return 0;
    const Device& device = cluster_.devices[at(id)];
    const Link& port = cluster_.links[at(way == Way::kSent ? device.out : device.in)];
    double seconds = static_cast<double>(carried.bytes) / port.bandwidth;
    if (carried.outside > 0) {
      seconds = std::max(seconds, static_cast<double>(carried.outside) /
                                      cluster_.links[at(carried.link)].bandwidth);
    }
    return seconds + port.latency;
  }

  /// Returns the seconds after the end of the last backward pass if that takes no longer than
  /// alone.
  double own_tail(int stage, std::size_t i) const {
    static const Sums kNoSums;
    const std::vector<Sums>& of_members = sums_[at(stage)];
    const std::size_t member = at(equals_[i].member);
    const Sums& sums = member < of_members.size() ? of_members[member] : kNoSums;
    const double* const gradients = step_.gradients.data() + i * step_.bucket_count();
    const FlatTimes& times = step_.times[i];
    const double last = parted_ ? times.smaller_weight : times.last_backward();
    double first = kNever, end = 0;
    for (std::size_t k = 0; k < sums.buckets.size(); ++k) {
      const double made = gradients[sums.buckets[k]] - last;
      first = std::min(first, made);
      end = std::max(end, made + sums.seconds[k]);
    }
    if (!sums.buckets.empty()) end = std::max(end, first + sums.all);
    return end + times.update + sums.gathers;
  }

  double after_gradients(int stage, std::size_t i) const {
    // Of a team, it is sure of the first member alone.
    const bool sends = equals_[i].samples > (equals_[i].odd ? 1 : 0) && equals_[i].member == 0;
    double most = 0;
    std::size_t next = 0;
    for (const CutInfo& cut : partition_.cuts) {
      if (cut.to != stage || !cut.has_gradient()) continue;
      const double message = gradient_messages_[next++][i];
      if (!sends) continue;
      double least = kNever;
      for_each_of(cut.from, [&](std::size_t other) {
        least = std::min(least, step_.times[other].last_backward() + step_.tails[other]);
      });
      most = std::max(most, message + least);
    }
    return most;
  }

  const Cluster& cluster_;
  const Strategy& strategy_;
  const PartitionInfo& partition_;
  const StepReplicas& replicas_;
  const std::vector<EqualReplicas>& equals_;
  bool parted_;
  FlatStep& step_;
  std::vector<double> heads_;            // by stage: when its first pass can begin
  std::vector<std::vector<Sums>> sums_;  // by stage and member of its teams
  // By cut into the stage at hand that has a gradient, then times.
  std::vector<std::vector<double>> gradient_messages_;
};

}  // namespace

double add_tails(const Cluster& cluster, const Strategy& strategy, const PartitionInfo& partition,
                 const StepReplicas& replicas, const std::vector<StepBucket>& buckets, bool parted,
                 FlatStep& step) {
  Tails tails(cluster, strategy, partition, replicas, parted, step);
  tails.add_sums(buckets);
  return tails.run();
}

}  // namespace agpcs
