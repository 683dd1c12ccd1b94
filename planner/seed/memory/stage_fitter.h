// SPDX-License-Identifier: Apache-2.0
// StageFitter: what makes one stage fit its devices. For fit_memory.
#pragma once

#include "ir/base/at.h"
#include "ir/strategy/segments.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"
#include "planner/problem/stage_timer.h"
#include "planner/seed/fit_memory.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace agpcs {

/// Returns whether a device of the stage lacks memory.
bool lacks(const Problem& problem, Evaluator& evaluator, const Strategy& strategy, int stage);

/// Finds help for one stage that lacks memory. Refers to `problem`, `evaluator` and `levels`.
class StageFitter {
 public:
  StageFitter(const Problem& problem, Evaluator& evaluator, const Strategy& strategy, int stage,
              std::vector<OpId> ops, std::span<const StateLevel> levels,
              SampleMoves move = SampleMoves::kYes);
  /// Returns a recomputation that keeps more, as much as the devices have memory for as they are;
  /// nothing if there is none.
  std::optional<Recomputation> keeping_more();
  /// Returns the stage as it fits if devices have the least percentage of their memory more with
  /// which it does; nothing if a hundred times their memory is not enough.
  std::optional<StageSpec> with_more_memory();
  /// Has the state or activations in the memory of hosts, if it `may`, where that is faster than
  /// other help, or there is none.
  std::optional<StageSpec> run(bool may_offload);

 private:
  /// A stage that fits, and the seconds of its slowest device in a step.
  struct Fitted {
    StageSpec spec;
    double seconds = 0;
  };
  /// Divides gradients, and parameters, only where the stage recomputes otherwise, or does not fit:
  /// sums of gradients travel after each micro-batch, parameters before each pass, too.
  std::optional<Fitted> run_levels(bool in_hosts);
  /// Returns the recomputation of the form of `least` with which the stage needs least memory.
  Recomputation smallest(Recomputation least = kWholeStage);
  StageSpec& spec() { return strategy_.stages[at(stage_)]; }
  /// Returns the seconds of the slowest device in a step; with divided state, also those in which
  /// updated parameters travel, and what sums of each micro-batch take longer than backward passes.
  double seconds_of(const StageSpec& fitting);
  /// Returns how many seconds the passes of a micro-batch take longer because activations are in
  /// the memory of hosts.
  double waits_of(const StageSpec& fitting);
  /// Returns how many seconds updates take longer because the state is in the memory of hosts.
  double copies_of(const StageSpec& fitting);
  /// Returns the gradients of the stage, of a shared parameter where it is read first.
  const GradientSum& gradients();
  /// Returns what is worth trying: to keep all, to recompute all at once, the number of segments
  /// with which the stage needs least memory, and to keep as many of them as the devices have
  /// memory for as they are. The same of what keeps activations in the memory of hosts, if it may
  /// be `in_hosts`.
  std::vector<Recomputation> recomputations(bool in_hosts);
  void add_segments(const Recomputation& form, std::vector<Recomputation>& all);
  int most_segments() const { return static_cast<int>(std::min(ops_.size(), at(kMostSegments))); }
  /// Returns the recomputation of the form of `most` that keeps the most of its segments for which
  /// the devices have memory; nothing if they have none for one.
  std::optional<Recomputation> most_kept(Recomputation most);
  std::optional<StageSpec> with(const Recomputation& recompute);
  /// Keeps the shares if there is room for the state somewhere. Otherwise each device leaves room
  /// for a part of the state in proportion to its memory.
  std::optional<StageSpec> with_divided(const Recomputation& recompute);
  std::int64_t memory_of(int kind) const { return problem_.cluster.kinds[at(kind)].memory_bytes; }
  /// Returns the stage with samples for which devices have `room_of(kind)` bytes.
  template <typename F>
  std::optional<StageSpec> within(F room_of, const Recomputation& recompute, bool anew);
  /// Returns the most samples of a micro-batch for which `room` bytes suffice. Bytes grow with
  /// samples, nearly in a line, so it asks where the line between two numbers would meet the room.
  std::int64_t most_samples(std::int64_t room, const Recomputation& recompute);

  const Problem& problem_;
  Evaluator& evaluator_;
  Strategy strategy_;
  int stage_;
  std::span<const StateLevel> levels_;
  SampleMoves move_;
  std::vector<OpId> ops_;
  std::int64_t samples_ = 0;
  StageTimer timer_;
  std::optional<GradientSum> gradients_;  // worked out when they are first asked for
};

}  // namespace agpcs
