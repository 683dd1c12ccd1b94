// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace agpcs {

StepEngine::StepEngine(const Cluster& cluster)
    : cluster_(cluster), network_(cluster.links), rank_of_(cluster.devices.size(), -1) {
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    const DeviceKind& kind = cluster.kind_of(id);
    effects_.push_back({kind.message_overhead, kind.message_compute,
                        kind.overlap.compute_seconds_per_byte, kind.overlap.communication_factor});
    if (effects_.back().slowdown > 0) network_.watch(id);
  }
}

bool StepEngine::run(const FlatStep& step, StepDetail detail, double most) {
  reset(step, detail, most);
  for (int rank = 0; rank < static_cast<int>(ranks_.size()) && !late_; ++rank) {
    for (const int index : step.ranks[at(rank)].program->starts) ready_.push_back({rank, index});
  }
  begin_ready();
  while (!late_ && (!events_.empty() || !flow_ends_.empty())) {
    now_ = next_is_flow_end() ? flow_ends_.top().time : events_.top().time;
    while (handle_next()) begin_ready();
    settle();
  }
  if (late_) {
    events_.clear();
    network_.clear();  // while its flows are there
    return true;
  }
  if (!all_done()) return false;
  if (detail.timeline) sort_timeline();
  return true;
}

bool StepEngine::next_is_flow_end() const {
  if (flow_ends_.empty() || events_.empty()) return events_.empty();
  const StepEvent& event = events_.top();
  const FlowEnd& end = flow_ends_.top();
  return end.time < event.time ||
         (end.time == event.time && order_of(EventKind::kFlowEnd, end.slot, 0) < event.order);
}

/// Handles the next event at this time; returns false when there is no such event.
bool StepEngine::handle_next() {
  if (events_.empty() && flow_ends_.empty()) return false;
  if (next_is_flow_end()) {
    const FlowEnd end = flow_ends_.top();
    if (end.time != now_) return false;
    flow_ends_.pop();
    end_flow(end);
    return true;
  }
  const StepEvent event = events_.top();
  if (event.time != now_) return false;
  events_.pop();
  handle(event);
  return true;
}

void StepEngine::reset(const FlatStep& step, StepDetail detail, double most) {
  step_ = &step;
  detail_ = detail;
  most_ = most;
  late_ = false;
  now_ = 0;
  network_.clear();
  flow_ends_.clear();
  ranks_.clear();
  ranks_.resize(step.ranks.size());
  waits_.clear();
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const std::vector<int>& waits = step.ranks[r].program->waits;
    ranks_[r].first_wait = static_cast<int>(waits_.size());
    waits_.insert(waits_.end(), waits.begin(), waits.end());
    rank_of_[at(step.ranks[r].device)] = static_cast<int>(r);
  }
  const std::size_t micro_batches = at(step.micro_batches);
  arrivals_.assign(step.channels.size() * micro_batches + step.collectives.size(), 0);
  teams_.assign(step.teams.size(), {});
  exchanges_.clear();
  free_exchanges_.clear();
  if (computations_.size() < ranks_.size()) computations_.resize(ranks_.size());
  ports_.clear();
  run_.seconds = 0;
  run_.ranks.assign(ranks_.size(), {});
  for (std::size_t r = 0; r < ranks_.size() && detail.bytes; ++r) {
    run_.ranks[r].all_reduce_seconds.assign(at(step.rounds), 0);
  }
  run_.link_bytes.assign(detail.bytes ? cluster_.links.size() : 0, 0);
  run_.timeline.clear();
  if (!teams_.empty()) count_teams();
  if (most_ < kAll) count_left();
}

/// Counts the seconds that each rank computes, and what surely follows; and those of its
/// collectives, which it makes one after the other.
void StepEngine::count_left() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const FlatRank& rank = step_->ranks[r];
    const FlatTimes& times = step_->times[at(rank.times)];
    ranks_[r].left = step_->tails.empty() ? times.update : step_->tails[at(rank.times)];
    for (const PrecedenceGraph::Instruction& instruction : rank.program->instructions) {
      if (instruction.stream == StreamKind::kCollective && !step_->least_seconds.empty()) {
        ranks_[r].left_to_sum += step_->least_seconds[step_->collective_of(rank, instruction.id)];
      }
      if (instruction.stream != StreamKind::kCompute) continue;
      if (instruction.id.opcode == Opcode::kUpdate) continue;
      ranks_[r].left += seconds_of(rank, instruction.id);
    }
    end_if_after(ranks_[r].left_to_sum);
  }
}

bool StepEngine::all_done() const {
  return std::all_of(waits_.begin(), waits_.end(), [](int waits) { return waits == kDone; });
}

/// Adds an event. Events of one time are ordered by kind, then rank, then index.
void StepEngine::push(double time, EventKind kind, int rank, int index, int version) {
  events_.push({time, order_of(kind, rank, index), version});
}

std::uint64_t StepEngine::order_of(EventKind kind, int rank, int index) {
  return static_cast<std::uint64_t>(kind) << 60 | static_cast<std::uint64_t>(rank) << 32 |
         static_cast<std::uint64_t>(index);
}

void StepEngine::handle(const StepEvent& event) {
  const int rank = static_cast<int>(event.order >> 32 & 0xfffffff);
  const int index = static_cast<int>(event.order & 0xffffffff);
  switch (static_cast<EventKind>(event.order >> 60)) {
    case EventKind::kComputed:
      if (!computations_[at(rank)].is_current(event.version)) break;
      if (const int team = step_->ranks[at(rank)].team; team >= 0 && teams_[at(team)].index >= 0) {
        end_run_of_team(team);
      } else {
        end_computation(rank, index);
      }
      break;
    case EventKind::kGradients: {
      if (!computations_[at(rank)].is_current(event.version)) break;
      const bool runs = computations_[at(rank)].reached(index);
      announce_release(rank);
      satisfy(rank, index);
      go_on(rank, step_->ranks[at(rank)].program->instructions[at(index)].scatter_before, runs);
      break;
    }
    case EventKind::kNeed: {
      if (!computations_[at(rank)].is_current(event.version)) break;
      const bool runs = computations_[at(rank)].reached(index);
      const int next = step_->ranks[at(rank)].program->instructions[at(index)].lets_begin;
      if (next >= 0) satisfy(rank, next);
      go_on(rank, index, runs);
      break;
    }
    case EventKind::kFlowing:
      start_flows(rank);
      break;
    case EventKind::kFlowEnd:
      break;  // these events are in flow_ends_
    case EventKind::kBegun:
      start_phase(rank);
      break;
  }
}

void StepEngine::satisfy(int rank, int index) {
  if (--waits_of(rank)[index] == 0) ready_.push_back({rank, index});
}

/// Begins the instructions that wait for nothing any more; those that end at once may add others.
void StepEngine::begin_ready() {
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    const Ready next = ready_[i];
    begin(next.rank, next.index);
  }
  ready_.clear();
}

void StepEngine::begin(int rank, int index) {
  const PrecedenceGraph::Instruction& instruction =
      step_->ranks[at(rank)].program->instructions[at(index)];
  Rank& state = ranks_[at(rank)];
  const std::size_t stream = at(static_cast<int>(instruction.stream));
  state.running[stream] = index;
  state.start[stream] = now_;
  switch (instruction.stream) {
    case StreamKind::kCompute:
      if (const int team = step_->ranks[at(rank)].team;
          team >= 0 && instruction.id.opcode != Opcode::kUpdate) {
        meet_team(team, index);
      } else {
        compute(rank, instruction, index, lead_of(rank));
      }
      break;
    case StreamKind::kCollective:
      arrive_at_collective(rank, instruction);
      break;
    case StreamKind::kSend:
    case StreamKind::kRecv:
      arrive_at_channels(rank, instruction);
      break;
  }
}

void StepEngine::finish(int rank, int index) {
  const PrecedenceGraph& program = *step_->ranks[at(rank)].program;
  const PrecedenceGraph::Instruction& instruction = program.instructions[at(index)];
  Rank& state = ranks_[at(rank)];
  const std::size_t stream = at(static_cast<int>(instruction.stream));
  state.running[stream] = -1;
  waits_of(rank)[index] = kDone;
  run_.seconds = std::max(run_.seconds, now_);
  if (state.waits_for == index) resume(rank);
  if (detail_.bytes) count_seconds(rank, instruction.id, now_ - state.start[stream]);
  if (detail_.timeline) {
    const bool pass = instruction.stream == StreamKind::kCompute;
    run_.timeline.push_back(
        {rank, instruction.id, state.start[stream], now_, pass ? state.exchanging : 0});
  }
  for (int i = instruction.next; i < instruction.next_end; ++i) satisfy(rank, program.next[at(i)]);
}

void StepEngine::count_seconds(int rank, const InstructionId& id, double seconds) {
  RankRun& run = run_.ranks[at(rank)];
  if (stream_of(id.opcode) == StreamKind::kCollective && id.object >= 0) {
    const int group = step_->group_of_bucket[at(id.object)];
    for (std::size_t i = 0; i < run.all_reduce_seconds.size(); ++i) {
      const int stage = step_->ranks[at(rank)].stage + static_cast<int>(i) * step_->round;
      if (group == stage) run.all_reduce_seconds[i] += seconds;
    }
  }
  if (id.opcode == Opcode::kSend || id.opcode == Opcode::kSendGradient) {
    run.send_seconds += seconds;
  }
}

double StepEngine::seconds_of(const FlatRank& rank, const InstructionId& id) const {
  const FlatTimes& times = step_->times[step_->times_of(rank, id)];
  const bool smaller = id.micro_batch >= step_->smaller_from;
  return id.opcode == Opcode::kForward ? (smaller ? times.smaller_forward : times.forward)
         : goes_back(id.opcode)
             ? (smaller ? times.smaller_backward : times.backward) +
                   (id.micro_batch + 1 == step_->micro_batches ? times.step_end : 0)
         : id.opcode == Opcode::kBackwardWeight ? (smaller ? times.smaller_weight : times.weight)
                                                : times.update;
}

/// Notes that the rank begins a pass of `lead + seconds`: the step cannot end before the rank has
/// done all that is left for it, and what surely follows.
void StepEngine::expect_end(int rank, double lead, double seconds) {
  double& left = ranks_[at(rank)].left;
  end_if_after(now_ + lead + left);
  left -= seconds;
}

/// Notes that the rank is ready for a collective of at least so many seconds.
void StepEngine::expect_end_of_sums(int rank, double least) {
  double& left = ranks_[at(rank)].left_to_sum;
  end_if_after(now_ + left);
  left -= least;
}

/// Ends the run if the step, which takes at least until `end`, takes more than counts.
void StepEngine::end_if_after(double end) {
  constexpr double kRounding = 1 + 1e-9;
  if (end <= most_ * kRounding) return;
  late_ = true;
  run_.seconds = std::max(run_.seconds, end);
}

/// Returns the seconds that come before what a rank computes next.
double StepEngine::lead_of(int rank) const {
  const Rank& state = ranks_[at(rank)];
  const FlatTimes& times = step_->times[at(step_->ranks[at(rank)].times)];
  return state.owed + (state.begun ? 0 : times.begin);
}

/// Begins a computation after `lead` seconds.
void StepEngine::compute(int rank, const PrecedenceGraph::Instruction& instruction, int index,
                         double lead) {
  const FlatRank& spec = step_->ranks[at(rank)];
  const Effects& effects = effects_[at(spec.device)];
  const Opcode opcode = instruction.id.opcode;
  const double seconds = seconds_of(spec, instruction.id);
  set_computing(rank, true);
  Rank& state = ranks_[at(rank)];
  run_.ranks[at(rank)].compute_seconds -= state.owed;
  state.owed = 0;
  state.begun = true;
  if (most_ < kAll && opcode != Opcode::kUpdate) expect_end(rank, lead, seconds);
  state.retimed = effects.slowdown > 0 || instruction.waits_within;
  if (state.retimed) {
    compute_slowed(rank, instruction, index, lead, seconds);
    return;
  }
  run_.ranks[at(rank)].compute_seconds += lead + seconds;
  push(now_ + (lead + seconds), EventKind::kComputed, rank, index,
       computations_[at(rank)].version());
  if (instruction.release == instruction.release_end) return;
  while (state.release < state.release_end)
    announce_release(rank);  // releases of a pass that has just ended
  state.release = instruction.release;
  state.release_end = instruction.release_end;
  state.release_base = now_;
  state.release_lead = lead;
  state.backward = instruction.id;
  const bool in_order = releases_in_order(rank, instruction);
  do announce_release(rank);
  while (!in_order && state.release < state.release_end);
}

/// Puts the next gradients of the rank's backward pass on the calendar, if there are more. Where
/// they come in order, they are put there one at a time, so that the calendar stays short.
void StepEngine::announce_release(int rank) {
  Rank& state = ranks_[at(rank)];
  if (state.release == state.release_end) return;
  const PrecedenceGraph::Release& release =
      step_->ranks[at(rank)].program->releases[at(state.release++)];
  push(state.release_base +
           (state.release_lead + gradients_after(rank, state.backward, release.bucket)),
       EventKind::kGradients, rank, release.instruction, computations_[at(rank)].version());
}

bool StepEngine::releases_in_order(int rank,
                                   const PrecedenceGraph::Instruction& instruction) const {
  const std::vector<PrecedenceGraph::Release>& releases = step_->ranks[at(rank)].program->releases;
  for (int i = instruction.release + 1; i < instruction.release_end; ++i) {
    const PrecedenceGraph::Release &before = releases[at(i - 1)], &next = releases[at(i)];
    const InstructionId& id = instruction.id;
    if (gradients_after(rank, id, next.bucket) < gradients_after(rank, id, before.bucket)) {
      return false;
    }
  }
  return true;
}

double StepEngine::gradients_after(int rank, const InstructionId& backward, int bucket) const {
  const std::size_t row = step_->times_of(step_->ranks[at(rank)], backward) * step_->bucket_count();
  const bool larger =
      backward.micro_batch < step_->smaller_from && !step_->larger_gradients.empty();
  return (larger ? step_->larger_gradients : step_->gradients)[row + at(bucket)];
}

double StepEngine::needs_after(int rank, const InstructionId& pass, int bucket) const {
  const bool forward = pass.opcode == Opcode::kForward;
  const bool larger = pass.micro_batch < step_->smaller_from;
  const std::size_t which = need_times(forward, larger);
  const std::size_t row = step_->times_of(step_->ranks[at(rank)], pass) * kNeedTimes + which;
  return step_->needs[row * step_->bucket_count() + at(bucket)];
}

/// Scales ports: while a device computes, its ports may carry less, and it may have less of the
/// links behind them.
void StepEngine::scale_ports() {
  for (const int rank : ports_) {
    const DeviceId id = step_->ranks[at(rank)].device;
    const double factor = ranks_[at(rank)].computing ? effects_[at(id)].port_factor : 1;
    network_.scale(cluster_.devices[at(id)].out, factor);
    network_.scale(cluster_.devices[at(id)].in, factor);
    network_.scale_shares(id, factor);
  }
  ports_.clear();
}

void StepEngine::settle() {
  if (!ports_.empty()) scale_ports();
  ends_.clear();
  network_.settle(now_, ends_);
  for (const FlowEnd& end : ends_) flow_ends_.set(end);
  if (network_.watches()) retime_computations();
}

/// Adds the time since the rank's last change to its exposed communication.
void StepEngine::account(int rank) {
  Rank& state = ranks_[at(rank)];
  if (!state.computing && state.moving > 0) {
    run_.ranks[at(rank)].exposed_communication += now_ - state.since;
  }
  state.since = now_;
}

void StepEngine::sort_timeline() {
  const auto key = [](const TimelineEvent& e) {
    return std::tuple(e.start, e.rank, stream_of(e.instruction.opcode), e.end);
  };
  std::stable_sort(run_.timeline.begin(), run_.timeline.end(),
                   [&](const auto& a, const auto& b) { return key(a) < key(b); });
}

namespace {

/// Names the first instruction, by rank and place in its program, that never ended.
Status unfinished(const Plan& plan, const StepModel& model, const StepEngine& engine) {
  for (int rank = 0; rank < static_cast<int>(model.ranks.size()); ++rank) {
    const StepRank& of = model.ranks[at(rank)];
    const auto& program = model.programs[at(of.program)].instructions;
    for (int i = 0; i < static_cast<int>(program.size()); ++i) {
      if (engine.is_done(rank, i)) continue;
      return internal_error(fmt::format("the plan cannot finish: on rank {}, {} never ends", rank,
                                        title_of(plan, of.stage, program[at(i)].id)));
    }
  }
  return internal_error("the plan cannot finish");
}

}  // namespace

Result<StepRun> run_step_model(const Plan& plan, const StepModel& model, const Cluster& cluster,
                               bool timeline) {
  FlatStep step;
  flatten(plan, model, step);
  StepEngine engine(cluster);
  if (!engine.run(step, {true, timeline})) return unfinished(plan, model, engine);
  return std::move(engine.result());
}

}  // namespace agpcs
