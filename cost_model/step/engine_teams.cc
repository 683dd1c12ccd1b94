// SPDX-License-Identifier: Apache-2.0
// The part of the engine that is about teams: members begin each pass together, compute between its
// meetings, and exchange at them.
#include "cost_model/step/engine.h"

#include <algorithm>

namespace agpcs {

/// Counts what teams put on links, and finds those whose members messages may slow.
void StepEngine::count_teams() {
  for (int team = 0; team < static_cast<int>(teams_.size()); ++team) {
    for_each_member(team, [&](int rank) {
      if (effects_[at(step_->ranks[at(rank)].device)].slowdown > 0) teams_[at(team)].slowed = true;
    });
  }
  if (!detail_.bytes) return;
  for (const auto& [exchange, times] : step_->team_bytes) {
    for (const Phase& phase : *exchange) {
      for (const Flow& flow : phase.flows) count_bytes(flow, times * flow.bytes);
    }
  }
}

/// A member of a team is ready for its next pass. When all are, the pass begins on all of them.
void StepEngine::meet_team(int team, int index) {
  const int size = step_->team_first[at(team) + 1] - step_->team_first[at(team)];
  if (++teams_[at(team)].met < size) return;
  teams_[at(team)].met = 0;
  double lead = 0;
  for_each_member(team, [&](int rank) { lead = std::max(lead, lead_of(rank)); });
  begin_pass(team, index, lead);
}

/// Begins a pass, which computes after `lead` seconds, those of the slowest member.
void StepEngine::begin_pass(int team, int index, double lead) {
  Team& state = teams_[at(team)];
  const FlatTeam& of = step_->teams[at(team)];
  const InstructionId& id = step_->ranks[at(first_of(team))].program->instructions[at(index)].id;
  const bool smaller = id.micro_batch >= step_->smaller_from;
  const TeamScript& script = smaller ? *of.smaller : *of.larger;
  state.index = index;
  state.pass = id.opcode == Opcode::kForward ? &script.forward : &script.backward;
  state.first_exchange = smaller ? of.smaller_first : of.larger_first;
  state.last = id.opcode == Opcode::kBackward && id.micro_batch + 1 == step_->micro_batches;
  state.next = 0;
  state.begun = now_;
  state.lead = lead;
  state.exchanging = state.settled = 0;
  for_each_member(team, [&](int rank) {
    Rank& member = ranks_[at(rank)];
    member.start[at(static_cast<int>(StreamKind::kCompute))] = now_;
    run_.ranks[at(rank)].compute_seconds += lead_of(rank) - member.owed;
    member.owed = 0;
    member.begun = true;
    if (most_ < kAll) expect_end(rank, lead, seconds_of(step_->ranks[at(rank)], id));
  });
  begin_run_of_team(team, lead);
}

/// Lets members compute until their next meeting, or to the end of the pass, after `seconds`.
void StepEngine::begin_run_of_team(int team, double seconds) {
  Team& state = teams_[at(team)];
  while (state.next == state.pass->meetings.size()) {
    seconds += state.pass->after;
    state.exchanging += state.pass->exchanged;
    state.settled += state.pass->exchanged;
    if (!state.last) break;
    // The end of the step is that of larger micro-batches, of which there is always one.
    state.last = false;
    state.pass = &step_->teams[at(team)].larger->step_end;
    state.first_exchange = step_->teams[at(team)].larger_first;
    state.next = 0;
  }
  if (state.next < state.pass->meetings.size()) {
    seconds += state.pass->meetings[state.next].before;
  }
  for_each_member(team, [&](int rank) { set_computing(rank, true); });
  const int first = first_of(team);
  if (state.slowed) {
    computations_[at(first)].start(state.index, now_, seconds, speed_of_team(team), false);
    announce(first);
  } else {
    push(now_ + seconds, EventKind::kComputed, first, state.index,
         computations_[at(first)].version());
  }
}

/// Members have computed up to a meeting, or to the end of the pass.
void StepEngine::end_run_of_team(int team) {
  Team& state = teams_[at(team)];
  for_each_member(team, [&](int rank) { set_computing(rank, false); });
  if (state.next == state.pass->meetings.size()) {
    end_pass(team);
    return;
  }
  state.since = now_;
  const int exchange = state.first_exchange + state.pass->meetings[state.next].exchange;
  start_exchange(*step_->team_exchanges[at(exchange)], FlatChannel::kOf, ~team);
}

void StepEngine::end_exchange_of_team(int team) {
  Team& state = teams_[at(team)];
  for_each_member(team, [&](int rank) {
    account(rank);
    --ranks_[at(rank)].moving;
  });
  state.exchanging += now_ - state.since;
  ++state.next;
  begin_run_of_team(team, 0);
}

/// Ends the pass on all members. An executor announces no gradients before the members have
/// exchanged all, so those that the pass makes are ready now.
void StepEngine::end_pass(int team) {
  Team& state = teams_[at(team)];
  const int index = state.index;
  state.index = -1;
  for_each_member(team, [&](int rank) {
    RankRun& run = run_.ranks[at(rank)];
    run.compute_seconds += now_ - state.begun - state.lead;
    run.exposed_communication += state.settled;
    run.team_exchange += state.exchanging;
    ranks_[at(rank)].exchanging = state.exchanging;
    finish(rank, index);
    ranks_[at(rank)].exchanging = 0;  // the update exchanges nothing
    const PrecedenceGraph& program = *step_->ranks[at(rank)].program;
    const PrecedenceGraph::Instruction& pass = program.instructions[at(index)];
    for (int i = pass.release; i < pass.release_end; ++i) {
      satisfy(rank, program.releases[at(i)].instruction);
    }
  });
}

/// Returns how fast members compute while messages come and go: as fast as the one that they slow
/// most, as all meet.
double StepEngine::speed_of_team(int team) const {
  double speed = 1;
  for_each_member(team, [&](int rank) { speed = std::min(speed, speed_of(rank)); });
  return speed;
}

}  // namespace agpcs
