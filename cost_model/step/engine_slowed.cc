// SPDX-License-Identifier: Apache-2.0
// The part of the engine that runs passes which messages slow, and passes that wait within.
#include "cost_model/step/engine.h"

#include <algorithm>

namespace agpcs {

/// Lets a pass wait while `before` has not ended: the sum before that of the bucket which it has
/// filled, or the gather of what it needs. -1: there is none. If the pass `runs` on, what it comes
/// to next is announced.
void StepEngine::go_on(int rank, int before, bool runs) {
  Rank& state = ranks_[at(rank)];
  if (before < 0 || waits_of(rank)[before] == kDone) {
    if (state.retimed && runs) announce(rank);
    return;
  }
  set_computing(rank, false);
  state.waits_for = before;
  state.paused_since = now_;
  computations_[at(rank)].set_speed(now_, 0);
}

void StepEngine::resume(int rank) {
  Rank& state = ranks_[at(rank)];
  set_computing(rank, true);
  state.waits_for = -1;
  state.paused += now_ - state.paused_since;
  if (computations_[at(rank)].set_speed(now_, speed_of(rank))) announce(rank);
}

void StepEngine::set_computing(int rank, bool computing) {
  account(rank);
  ranks_[at(rank)].computing = computing;
  if (effects_[at(step_->ranks[at(rank)].device)].port_factor != 1) ports_.push_back(rank);
}

void StepEngine::compute_slowed(int rank, const PrecedenceGraph::Instruction& instruction,
                                int index, double lead, double seconds) {
  RunningComputation& running = computations_[at(rank)];
  ranks_[at(rank)].paused = 0;
  const double work = lead + seconds;
  running.start(index, now_, work, speed_of(rank), instruction.waits_within);
  const PrecedenceGraph& program = *step_->ranks[at(rank)].program;
  for (int i = instruction.release; i < instruction.release_end; ++i) {
    const PrecedenceGraph::Release& release = program.releases[at(i)];
    const double ready = lead + gradients_after(rank, instruction.id, release.bucket);
    running.add_gradients(release.instruction, std::min(ready, work));  // but for rounding
  }
  for (int i = instruction.use; i < instruction.use_end; ++i) {
    const PrecedenceGraph::Use& use = program.uses[at(i)];
    const double needed = lead + needs_after(rank, instruction.id, use.bucket);
    running.add_need(use.gather, std::min(needed, work));
  }
  announce(rank);
}

/// Puts what a rank's computation comes to next on the calendar, its end or gradients, so that the
/// calendar stays short.
void StepEngine::announce(int rank) {
  const auto next = computations_[at(rank)].next_end();
  if (next) announce(rank, *next);
}

void StepEngine::announce(int rank, const RunningComputation::Ending& ending) {
  using End = RunningComputation::End;
  const EventKind kind = ending.end == End::kGradients ? EventKind::kGradients
                         : ending.end == End::kNeed    ? EventKind::kNeed
                                                       : EventKind::kComputed;
  push(ending.time, kind, rank, ending.instruction, computations_[at(rank)].version());
}

void StepEngine::end_computation(int rank, int index) {
  set_computing(rank, false);
  const Rank& state = ranks_[at(rank)];
  if (state.retimed) {
    run_.ranks[at(rank)].compute_seconds += computations_[at(rank)].finish(now_) - state.paused;
    // Gradients may come at the same time as the end, and after it.
    computations_[at(rank)].for_each_left([&](const auto& left) { announce(rank, left); });
  }
  finish(rank, index);
}

/// Returns how fast a rank computes while messages come and go.
double StepEngine::speed_of(int rank) const {
  const DeviceId device = step_->ranks[at(rank)].device;
  const double slowdown = effects_[at(device)].slowdown;
  return slowdown > 0 ? std::max(0.0, 1 - slowdown * network_.rate_of(device)) : 1;
}

void StepEngine::retime_computations() {
  network_.take_touched(touched_);
  for (const DeviceId device : touched_) {
    const int rank = rank_of_[at(device)];
    if (!ranks_[at(rank)].computing) continue;
    if (const int team = step_->ranks[at(rank)].team; team >= 0 && teams_[at(team)].index >= 0) {
      RunningComputation& running = computations_[at(first_of(team))];
      if (running.set_speed(now_, speed_of_team(team))) announce(first_of(team));
      continue;
    }
    if (computations_[at(rank)].set_speed(now_, speed_of(rank))) announce(rank);
  }
}

}  // namespace agpcs
