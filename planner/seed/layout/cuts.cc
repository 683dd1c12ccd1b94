// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/layout/cuts.h"

#include "cost_model/network/link_model.h"
#include "ir/base/at.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace agpcs {
namespace {

/// Shares teams out by the speeds of their members, for cuts.
StageSpec rough_teams(const Problem& problem, const Layout::Stage& stage, std::int64_t samples) {
  std::vector<double> speeds;
  for (const std::vector<DeviceId>& team : stage.teams) {
    speeds.push_back(0);
    for (const DeviceId id : team) {
      speeds.back() += problem.costs.speed(problem.cluster.devices[at(id)].kind, samples);
    }
  }
  StageSpec spec{stage.devices, largest_remainder(samples, speeds)};
  for (std::int64_t& share : spec.shares) share = std::max<std::int64_t>(1, share);
  return spec;
}

/// Finds the cuts of one layout for one number of micro-batches.
class CutFinder {
 public:
  CutFinder(const Problem& problem, const Layout& layout, std::int64_t samples)
      : problem_(problem), layout_(layout), samples_(samples) {
    StageTimer whole(problem, all_ops(problem));
    for (const Layout::Stage& stage : layout.stages) {
      add_prefix_sums(stage, !stage.weights.empty() ? weighted_stage(stage, samples)
                             : stage.teams.empty()
                                 ? balanced_stage(problem, whole, stage.devices, samples)
                                 : rough_teams(problem, stage, samples));
    }
    for (int s = 1; s < static_cast<int>(layout.stages.size()); ++s) add_cuts(s);
  }

  /// Returns the stage of each block. Needs: at least as many blocks as stages.
  std::vector<int> stage_of_block() const {
    const int blocks = problem_.blocks.size();
    const int stages = static_cast<int>(layout_.stages.size());
    std::vector<std::vector<Choice>> best(at(stages), std::vector<Choice>(at(blocks) + 1));
    for (int s = 0; s < stages; ++s) {
      for (int end = s + 1; end <= blocks - (stages - 1 - s); ++end) {
        best[at(s)][at(end)] = choose(best, s, end);
      }
    }
    std::vector<int> stage_of(at(blocks));
    int end = blocks;
    for (int s = stages - 1; s >= 0; --s) {
      const int begin = best[at(s)][at(end)].begin;
      std::fill(stage_of.begin() + begin, stage_of.begin() + end, s);
      end = begin;
    }
    return stage_of;
  }

 private:
  struct Choice {
    double seconds = std::numeric_limits<double>::infinity();  // slowest stage or cut so far
    int begin = 0;                                             // first block of the last stage
  };

  Choice choose(const std::vector<std::vector<Choice>>& best, int stage, int end) const {
    if (stage == 0) return {stage_seconds(0, 0, end), 0};
    Choice choice;
    for (int begin = end - 1; begin >= stage; --begin) {
      const double own = stage_seconds(stage, begin, end);
      if (own > choice.seconds) break;  // more blocks take longer
      const double seconds =
          std::max({best[at(stage - 1)][at(begin)].seconds, own, cuts_[at(stage - 1)][at(begin)]});
      if (seconds <= choice.seconds) choice = {seconds, begin};
    }
    return choice;
  }

  /// A team takes as long as if its members had operators to divide without end, and no links.
  void add_prefix_sums(const Layout::Stage& stage, const StageSpec& spec) {
    std::vector<std::vector<double>> sums;  // by replica of the stage
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const bool teams = !stage.teams.empty();
      const std::vector<DeviceId> members = teams ? stage.teams[i] : std::vector{spec.devices[i]};
      std::vector<const std::vector<double>*> seconds_of;  // by member
      for (const DeviceId id : members) seconds_of.push_back(&seconds_on(id, spec.shares[i]));
      std::vector<double> sum = {0};
      for (std::size_t block = 0; block < at(problem_.blocks.size()); ++block) {
        double speed = 0;  // blocks/s
        for (const std::vector<double>* const seconds : seconds_of) {
          if ((*seconds)[block] > 0) speed += 1 / (*seconds)[block];
        }
        sum.push_back(sum.back() + (speed > 0 ? 1 / speed : 0));
      }
      sums.push_back(std::move(sum));
    }
    sums_.push_back(std::move(sums));
  }

  /// Returns the seconds of each block on a device with so many samples.
  const std::vector<double>& seconds_on(DeviceId device, std::int64_t samples) {
    const int kind = problem_.cluster.devices[at(device)].kind;
    const auto [known, added] = seconds_.try_emplace({kind, samples});
    if (!added) return known->second;
    for (const Block& block : problem_.blocks.blocks) {
      double seconds = 0;
      for (const OpId op : block.ops) seconds += problem_.costs.seconds(kind, op, samples).sum();
      known->second.push_back(seconds);
    }
    return known->second;
  }

  double stage_seconds(int stage, int begin, int end) const {
    double slowest = 0;
    for (const std::vector<double>& sum : sums_[at(stage)]) {
      slowest = std::max(slowest, sum[at(end)] - sum[at(begin)]);
    }
    return slowest;
  }

  /// Adds the seconds of one micro-batch's tensors into `stage`, by its first block. Replicas send
  /// side by side.
  void add_cuts(int stage) {
    const auto& from = layout_.stages[at(stage - 1)].devices;
    const auto& to = layout_.stages[at(stage)].devices;
    const double lanes = static_cast<double>(std::min(from.size(), to.size()));
    const double scale =
        static_cast<double>(samples_) / static_cast<double>(problem_.blocks.samples) / lanes;
    std::vector<double> seconds;
    std::map<std::int64_t, double> known;  // by bytes: many cuts have as many
    for (const double all : problem_.blocks.cut_bytes) {
      const auto bytes = static_cast<std::int64_t>(all * scale);
      const auto [one, added] = known.try_emplace(bytes, 0);
      if (added) {
        one->second = lone_seconds(problem_.cluster,
                                   transfer(problem_.cluster, from.back(), to.front(), bytes));
      }
      seconds.push_back(one->second);
    }
    cuts_.push_back(std::move(seconds));
  }

  const Problem& problem_;
  const Layout& layout_;
  std::int64_t samples_;
  std::map<std::pair<int, std::int64_t>, std::vector<double>> seconds_;  // by kind and samples
  std::vector<std::vector<std::vector<double>>> sums_;  // by stage, device, blocks before
  std::vector<std::vector<double>> cuts_;               // by stage less one, first block
};

}  // namespace

StageSpec weighted_stage(const Layout::Stage& stage, std::int64_t samples) {
  StageSpec spec;
  spec.devices = stage.devices;
  spec.shares = largest_remainder(samples, stage.weights);
  return spec;
}

std::vector<int> cut_layout(const Problem& problem, const Layout& layout, std::int64_t samples) {
  return CutFinder(problem, layout, samples).stage_of_block();
}

}  // namespace agpcs
