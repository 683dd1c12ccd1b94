// SPDX-License-Identifier: Apache-2.0
// The part of a rough step that sums the gradients of each stage.
#include "ir/base/at.h"
#include "ir/strategy/state_parts.h"
#include "planner/evaluate/rough/step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// About how many pieces of a stage's gradients may be summed in buckets of their own.
constexpr double kPieces = 10;

GradientSum part_of(GradientSum sum, double part) {
  for (std::int64_t* const number :
       {&sum.bytes, &sum.elements, &sum.held_bytes, &sum.rounded_bytes}) {
    *number = static_cast<std::int64_t>(part * static_cast<double>(*number));
  }
  return sum;
}

}  // namespace

/// Returns how much of a stage's gradients a rank has: all, or of teams the member that has most.
double RoughModel::held_part(const Strategy& strategy, std::size_t stage) {
  const StageSpec& spec = strategy.stages[stage];
  if (!spec.has_teams()) return 1;
  double most = 0;
  const BodyRange bodies = bodies_of(spec);
  for (int body = bodies.begin; body < bodies.end; ++body) {
    most = std::max(most, teams_.find(strategy.bodies[at(body)]).most_held);
  }
  return most;
}

/// Returns the gradients of a stage.
StageGradients RoughModel::gradients_of(int stage) const {
  StageGradients all;
  double of_blocks = 0;                                   // sum of `backward_of_` over its blocks
  std::vector<std::pair<std::size_t, std::size_t>> runs;  // of its blocks
  for (std::size_t first = 0; first < gradients_.size(); first = at(run_end_[first])) {
    if (stage_of_block_[first] != stage) continue;
    runs.emplace_back(first, run_end_[first]);
    for (std::size_t b = first; b < runs.back().second; ++b) {
      all.sum.bytes += gradients_[b].bytes;
      all.sum.elements += gradients_[b].elements;
      all.sum.tensors += gradients_[b].tensors;
      of_blocks += backward_of_[b];
    }
  }
  if (all.sum.bytes == 0) return all;
  all.pieces.emplace_back();
  double done = 0;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    for (std::size_t b = run->second; b-- > run->first;) {
      done += backward_of_[b];
      if (gradients_[b].bytes == 0) continue;
      if (all.pieces.back().bytes * kPieces >= static_cast<double>(all.sum.bytes)) {
        all.pieces.emplace_back();
      }
      all.pieces.back().part = of_blocks > 0 ? done / of_blocks : 1;
      all.pieces.back().bytes += static_cast<double>(gradients_[b].bytes);
    }
  }
  return all;
}

/// Returns the reduction of each stage. The stage's timer keeps its gradients, unless some of them
/// are taken out of those of its blocks.
const std::vector<RoughModel::Reduction>& RoughModel::reductions(
    const Strategy& strategy, const std::vector<StageTimer*>& timers,
    const std::vector<Passes>& passes) {
  std::vector<Reduction>& all = reductions_;
  all.resize(passes.size());
  for (std::size_t s = 0; s < all.size(); ++s) {
    const bool whole = std::find(taken_.begin(), taken_.end(), static_cast<int>(s)) == taken_.end();
    std::optional<StageGradients> rest;
    std::optional<StageGradients>& gradients = whole ? timers[s]->gradients : rest;
    if (!gradients) gradients = gradients_of(static_cast<int>(s));
    Reduction& own = all[s];
    own.gradients = gradients->sum;
    const double held = held_part(strategy, s);
    if (held < 1) own.gradients = part_of(own.gradients, held);
    own.line = {};
    own.pieces.clear();
    own.scatters = own.gathers = false;
    const std::vector<DeviceId>& devices = strategy.stages[s].devices;
    if (devices.size() < 2 || own.gradients.bytes == 0) continue;
    own.line = reduce_line(devices);
    const StateLevel level = divided_by(strategy.stages[s], problem_.training);
    if (level != StateLevel::kWhole) own.line = own.line.halved();
    own.scatters = level >= StateLevel::kGradients;
    own.gathers = level == StateLevel::kParameters;
    for (const auto& [part, bytes] : gradients->pieces) {
      // Teams announce no gradient before their last backward pass has ended.
      const double made = strategy.stages[s].has_teams() ? 1 : part;
      own.pieces.push_back({passes[s].backward * made, held * bytes});
    }
  }
  return all;
}

/// Returns when the sums end, in seconds after the last backward pass began. It uses the best
/// buckets of consecutive pieces. A bucket begins when its pieces are made and the bucket before it
/// is summed.
double RoughModel::end_of_sums(const Reduction& reduction) {
  std::vector<double>& ends = ends_;  // when the first 0, 1, 2, ... pieces are summed
  ends.assign(1, 0);
  for (std::size_t last = 0; last < reduction.pieces.size(); ++last) {
    double bytes = 0, end = std::numeric_limits<double>::infinity();
    for (std::size_t first = last + 1; first-- > 0;) {
      bytes += reduction.pieces[first].bytes;
      end = std::min(end,
                     std::max(ends[first], reduction.pieces[last].made) + reduction.line.at(bytes));
    }
    ends.push_back(end);
  }
  return ends.back();
}

}  // namespace agpcs
