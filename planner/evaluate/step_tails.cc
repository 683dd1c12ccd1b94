// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/step_tails.h"

#include "ir/base/at.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace agpcs {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

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
      std::vector<Sums>& of_members = sums_[at(buckets[b].stage)];
      of_members.resize(std::max<std::size_t>(1, buckets[b].members.size()));
      for (std::size_t m = 1; m < of_members.size(); ++m) {
        const std::size_t further = at(step_.further_first[b]) + m - 1;
        of_members[m].add(
            b, least_seconds(cluster, *step_.collectives[2 * buckets.size() + 2 + further]));
      }
      Sums& own = of_members[0];
      own.add(b, least_seconds(cluster, *step_.collectives[b]));
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
      heads_[at(stage)] = std::max(heads_[at(stage)], least);
    }
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
    for (const CutInfo& cut : partition_.cuts) {
      if (cut.to != stage || !cut.has_gradient() || !sends) continue;
      double least = kNever;
      for_each_of(cut.from, [&](std::size_t other) {
        least = std::min(least, step_.times[other].last_backward() + step_.tails[other]);
      });
      most = std::max(most, least);
    }
    return most;
  }

  const PartitionInfo& partition_;
  const std::vector<EqualReplicas>& equals_;
  bool parted_;
  FlatStep& step_;
  std::vector<double> heads_;            // by stage: when its first pass can begin
  std::vector<std::vector<Sums>> sums_;  // by stage and member of its teams
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
