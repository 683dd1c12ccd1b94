// SPDX-License-Identifier: Apache-2.0
// What single moves lead to, as text.
#pragma once

#include "planner/refine/moves/moves.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

namespace agpcs::testing {

/// Three layers of 512 units on two fast and two slow devices, 8000 samples.
class AMove : public ::testing::Test {
 protected:
  AMove() : problem_(problem_of(chain(3, 512), fast_and_slow(), 8000)), moves_(*problem_) {}

  Strategy strategy(const std::string& text) const {
    return strategy_of(text, problem_->graph, problem_->cluster);
  }

  /// In the language of `strategy_of`; micro-batches and schedule only where they are not
  /// `start`'s.
  std::string text(const Strategy& strategy, const Strategy& start) const {
    std::string text;
    if (strategy.micro_batches != start.micro_batches || strategy.schedule != start.schedule) {
      text = "micro-batches " + std::to_string(strategy.micro_batches) + " " +
             std::string(agpcs::name_of(strategy.schedule)) + "\n";
    }
    for (int s = 0; s < static_cast<int>(strategy.stages.size()); ++s) {
      const StageSpec& spec = strategy.stages[static_cast<std::size_t>(s)];
      text += "stage";
      for (std::size_t i = 0; i < spec.devices.size(); ++i) {
        text += " " + problem_->cluster.device_name(spec.devices[i]) + "=" +
                std::to_string(spec.shares[i]);
      }
      if (spec.recompute) text += " " + print_recomputation(spec.recompute);
      if (spec.state != StateLevel::kWhole)
        text += " state=" + std::string(agpcs::name_of(spec.state));
      if (spec.in_flight) text += " in-flight=" + std::to_string(*spec.in_flight);
      text += " :";
      const auto& stages = strategy.stage_of;
      const auto first = std::find(stages.begin(), stages.end(), s) - stages.begin();
      const auto last = stages.rend() - std::find(stages.rbegin(), stages.rend(), s) - 1;
      text += " " + problem_->graph.op(static_cast<OpId>(first)).name;
      if (last > first) text += ".." + problem_->graph.op(static_cast<OpId>(last)).name;
      text += "\n";
    }
    for (const Bucket& bucket : strategy.buckets) {
      text += "bucket " + std::to_string(bucket.stage) + " " +
              std::string(agpcs::name_of(bucket.algorithm));
      for (const TensorId id : bucket.parameters) text += " " + problem_->graph.tensor(id).name;
      text += "\n";
    }
    return text;
  }

  /// Where the move leads from `before`; "impossible" where it leads nowhere.
  std::string after(const std::string& before, const StrategyMove& move) {
    const Strategy start = strategy(before);
    const auto changed = moves_.apply(start, start, move);
    return changed ? text(*changed, start) : "impossible";
  }

  std::unique_ptr<const Problem> problem_;
  StrategyMoves moves_;
};

inline constexpr const char* kTwoStages =
    "micro-batches 2 1f1b\nstage a/0=2000 a/1=2000 : h0 a0 h1\nstage b/0=4000 : *\n";
}  // namespace agpcs::testing
