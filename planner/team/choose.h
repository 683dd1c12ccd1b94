// SPDX-License-Identifier: Apache-2.0
// Chooses how a team computes the operators of a stage.
#pragma once

#include "ir/team/body.h"
#include "planner/team/problem.h"
#include "planner/team/space.h"

#include <agpcs/status.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace agpcs {

struct TeamChoice {
  TeamBody body;
  double seconds = 0;  ///< of a micro-batch: `TeamSeconds::per_micro_batch`
  /// No state was left out: nothing of what `team_space` offers takes less.
  bool exact = true;
};

/// States at a place of which none is dropped, by default.
inline constexpr std::size_t kMostTeamStates = 4000;

/// Chooses a split, or none, for each operator, and collectives where a tensor does not lie as an
/// operator needs it, so that `TeamSeconds::per_micro_batch` is least. A dynamic program over the
/// operators: its state is how the tensors lie that operators behind the place still read, and
/// which other forms of them are there. If there are more than `most_states`, those are dropped
/// that take no less than one of the best would if it had all of their forms, too; and if there
/// still are more, and more than 200, those stay whose seconds are least, counted as if every
/// tensor had to become a copy. Where operators repeat in six turns or more
/// (`TeamProblem::alike`), the turns behind the second and before the last are as the second. In
/// all these cases the choice is not proven. Errors (kUsage): fewer than two members, a part that
/// is not positive. Debug builds verify the body. Cost: O(operators x states x options of an
/// operator).
Result<TeamChoice> choose_team_body(const TeamProblem& problem,
                                    std::size_t most_states = kMostTeamStates);

/// Returns the cheapest body with these options, a number for each operator, and these beginnings,
/// by TensorId, of tensors that the operators do not make (kNone: wherever is cheapest). Returns
/// nullopt if a tensor would need more forms than `cheapest_tree` allows, or a parameter one that
/// nobody could make.
std::optional<TeamBody> team_body(const TeamProblem& problem, const TeamSpace& space,
                                  const std::vector<int>& options,
                                  const std::vector<int>& beginnings);

/// Returns what a body takes. It reads the body alone, not how it was chosen. Needs: it verifies.
TeamSeconds team_seconds(const TeamProblem& problem, const TeamBody& body);

}  // namespace agpcs
