// SPDX-License-Identifier: Apache-2.0
// The part of the engine that is about teams: members begin each pass together, and exchange in it.
#include "cost_model/step/engine.h"

#include <algorithm>

namespace agpcs {

/// Counts what teams do within passes: the time in which they exchange is no computation, and what
/// they exchange is on links.
void StepEngine::count_teams() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    run_.ranks[r].exposed_communication = step_->times[at(step_->ranks[r].times)].exchange;
  }
  if (!detail_.bytes) return;
  for (const auto& [exchange, times] : step_->team_exchanges) {
    for (const Phase& phase : *exchange) {
      for (const Flow& flow : phase.flows) count_bytes(flow, times * flow.bytes);
    }
  }
}

/// A member of a team is ready for its next pass. When all are, the pass begins on all of them.
void StepEngine::meet_team(int team, int index) {
  const int first = step_->team_first[at(team)], end = step_->team_first[at(team) + 1];
  if (++met_[at(team)] < end - first) return;
  met_[at(team)] = 0;
  double lead = 0;
  for (int i = first; i < end; ++i) lead = std::max(lead, lead_of(step_->team_ranks[at(i)]));
  for (int i = first; i < end; ++i) {
    const int rank = step_->team_ranks[at(i)];
    ranks_[at(rank)].start[at(static_cast<int>(StreamKind::kCompute))] = now_;
    compute(rank, step_->ranks[at(rank)].program->instructions[at(index)], index, lead);
  }
}

}  // namespace agpcs
