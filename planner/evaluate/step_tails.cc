// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/step_tails.h"

#include "ir/base/at.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace agpcs {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

double least_seconds(const Cluster& cluster, const Exchange& exchange) {
  double seconds = 0;
  for (const Phase& phase : exchange) {
    double slowest = 0;
    for (const Flow& flow : phase.flows) {
      double bandwidth = kNever;
      for (const LinkId link : flow.links) {
        bandwidth = std::min(bandwidth, cluster.links[at(link)].bandwidth);
      }
      slowest = std::max(slowest, flow.stretch * static_cast<double>(flow.bytes) / bandwidth);
    }
    seconds += phase.latency + slowest;
  }
  return seconds;
}

class Tails {
 public:
  Tails(const PartitionInfo& partition, const std::vector<EqualReplicas>& equals, bool parted,
        FlatStep& step)
      : partition_(partition),
        equals_(equals),
        parted_(parted),
        step_(step),
        heads_(partition.stages.size()) {
    step_.tails.assign(step.times.size(), 0);
  }

  void add_sums(const Cluster& cluster, const std::vector<StepBucket>& buckets) {
    sums_.resize(partition_.stages.size());
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (buckets[b].shared != nullptr) continue;
      Sums& own = sums_[at(buckets[b].stage)];
      own.buckets.push_back(b);
      own.seconds.push_back(least_seconds(cluster, *step_.collectives[b]));
      own.all += own.seconds.back();
      const std::size_t gather = buckets.size() + 2 + b;
      // Parameters that are divided travel before passes, not after the update.
      const bool before = buckets[b].state == StateLevel::kParameters;
      if (before || gather >= step_.collectives.size()) continue;
      own.gathers += least_seconds(cluster, *step_.collectives[gather]);
    }
  }

  /// Stages only wait for tensors of earlier ones.
  double run() {
    double bound = 0;
    for (int stage = 0; stage < static_cast<int>(heads_.size()); ++stage) {
      set_head(stage);
      for_each_of(stage, [&](std::size_t i) {
        step_.tails[i] = own_tail(stage, i);
        if (!parted_) step_.tails[i] = std::max(step_.tails[i], after_gradients(stage, i));
        const FlatTimes& times = step_.times[i];
        const double larger = times.forward + times.backward + times.weight;
        const double smaller =
            times.smaller_forward + times.smaller_backward + times.smaller_weight;
        const double passes =
            step_.smaller_from * larger + (step_.micro_batches - step_.smaller_from) * smaller;
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
      heads_[at(stage)] = std::max(heads_[at(stage)], least);
    }
  }

  /// Returns the seconds after the end of the last backward pass if that takes no longer than
  /// alone.
  double own_tail(int stage, std::size_t i) const {
    const Sums& sums = sums_[at(stage)];
    const double* const gradients = step_.gradients.data() + i * step_.bucket_count();
    const FlatTimes& times = step_.times[i];
    const double last = parted_ ? times.smaller_weight : times.smaller_backward;
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
    const bool sends = equals_[i].samples > (equals_[i].odd ? 1 : 0);
    double most = 0;
    for (const CutInfo& cut : partition_.cuts) {
      if (cut.to != stage || !cut.has_gradient() || !sends) continue;
      double least = kNever;
      for_each_of(cut.from, [&](std::size_t other) {
        least = std::min(least, step_.times[other].smaller_backward + step_.tails[other]);
      });
      most = std::max(most, least);
    }
    return most;
  }

  const PartitionInfo& partition_;
  const std::vector<EqualReplicas>& equals_;
  bool parted_;
  FlatStep& step_;
  std::vector<double> heads_;  // by stage: when its first pass can begin
  std::vector<Sums> sums_;     // by stage
};

}  // namespace

double add_tails(const Cluster& cluster, const PartitionInfo& partition,
                 const std::vector<EqualReplicas>& equals, const std::vector<StepBucket>& buckets,
                 bool parted, FlatStep& step) {
  Tails tails(partition, equals, parted, step);
  tails.add_sums(cluster, buckets);
  return tails.run();
}

}  // namespace agpcs
