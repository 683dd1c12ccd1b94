// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/step_waits.h"

#include "cost_model/step/flat_step.h"
#include "cost_model/step/model.h"
#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

std::uint64_t key_of(const InstructionId& id) {
  const auto part = [](int value) { return static_cast<std::uint64_t>(value + 1); };
  return (static_cast<std::uint64_t>(id.opcode) << 56) | (part(id.object) << 28) |
         part(id.micro_batch);
}

/// Returns a key that both ends of a transfer share, and all members of a norm or report.
std::tuple<int, Opcode, int, int> group_of(int program, const InstructionId& id) {
  const Opcode opcode = id.opcode == Opcode::kRecv           ? Opcode::kSend
                        : id.opcode == Opcode::kRecvGradient ? Opcode::kSendGradient
                                                             : id.opcode;
  const bool shared =
      opcode == Opcode::kSend || opcode == Opcode::kSendGradient || is_of_all_ranks(opcode);
  return {shared ? -1 : program, opcode, id.object, id.micro_batch};
}

}  // namespace

std::string_view name_of(WaitReason reason) {
  constexpr std::array<std::string_view, 7> kNames = {"start", "stream", "after", "gradients",
                                                      "need",  "peer",   "member"};
  return kNames[static_cast<std::size_t>(reason)];
}

StepWaits::StepWaits(const Plan& plan, const StepModel& model, const Estimate& estimate)
    : plan_(plan), model_(model), step_(estimate.step_seconds) {
  read_programs();
  read_timeline(estimate);
  find_pauses();
  arrivals_.resize(events_.size());
  for (int i = 0; i < event_count(); ++i) {
    for_each_wait(
        i, [&](const Wait& wait) { arrivals_[at(i)] = std::max(arrivals_[at(i)], wait.time); });
  }
  meetings_of_.resize(events_.size());
  for (int cut = 0; cut < static_cast<int>(plan.cuts.size()); ++cut) {
    add_transfers(cut, Opcode::kSend, Opcode::kRecv);
    add_transfers(cut, Opcode::kSendGradient, Opcode::kRecvGradient);
  }
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets.size()); ++bucket) {
    for (const std::vector<int>& ranks : meeting_ranks(plan, plan.buckets[at(bucket)])) {
      for (const InstructionId& id : collectives_of(plan, bucket)) add_collective(id, ranks);
    }
  }
  std::vector<int> all;
  for (int rank = 0; rank < plan.rank_count(); ++rank) all.push_back(rank);
  if (plan.training.optimizer.clips()) add_collective({Opcode::kNorm, -1, -1}, all);
  add_collective({Opcode::kReport, -1, -1}, all);
  for (const std::vector<int>& team : model.teams) {
    for (int m = 0; m < model.micro_batches; ++m) {
      add_collective({Opcode::kForward, -1, m}, team);
      add_collective({Opcode::kBackward, -1, m}, team);
    }
  }
}

void StepWaits::read_programs() {
  for (const Program& program : plan_.programs) {
    Index index;
    std::vector<std::vector<ProgramWait>> waits(program.instructions.size());
    std::array<int, kStreamKindCount> last = {-1, -1, -1, -1};
    for (std::size_t i = 0; i < waits.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      index[key_of(instruction.id)] = static_cast<int>(i);
      int& before = last[static_cast<std::size_t>(stream_of(instruction.id.opcode))];
      if (before >= 0) waits[i].push_back({before, WaitReason::kStream, -1});
      before = static_cast<int>(i);
      for (const InstructionId& id : instruction.after) {
        const bool within = is_event(id.opcode);
        const WaitReason reason = id.opcode == Opcode::kGradients ? WaitReason::kGradients
                                  : within                        ? WaitReason::kNeed
                                                                  : WaitReason::kAfter;
        const InstructionId done =
            id.opcode == Opcode::kGradients
                ? gradients_pass(plan_, program.stage, id.object, id.micro_batch)
            : within ? pass_of(id)
                     : id;
        const auto found = index.find(key_of(done));
        AGPCS_CHECK(found != index.end(), "'{}' waits for '{}', which is not before it",
                    name_of(instruction.id), name_of(id));
        waits[i].push_back({found->second, reason, within ? id.object : -1});
      }
    }
    index_.push_back(std::move(index));
    waits_.push_back(std::move(waits));
  }
}

void StepWaits::read_timeline(const Estimate& estimate) {
  first_of_rank_.push_back(0);
  for (int rank = 0; rank < plan_.rank_count(); ++rank) {
    first_of_rank_.push_back(first_of_rank_.back() +
                             static_cast<int>(waits_[at(program_of(rank))].size()));
  }
  events_.resize(at(first_of_rank_.back()));
  for (const TimelineEvent& event : estimate.timeline) {
    events_[at(find(event.rank, event.instruction))] = &event;
  }
  for (const TimelineEvent* event : events_) {
    AGPCS_CHECK(event != nullptr, "a timeline of {} events, the programs have {}",
                estimate.timeline.size(), events_.size());
  }
}

int StepWaits::find(int rank, InstructionId id) const {
  const Index& index = index_[at(program_of(rank))];
  const auto found = index.find(key_of(id));
  AGPCS_CHECK(found != index.end(), "rank {} does not execute '{}'", rank, name_of(id));
  return rank_begin(rank) + found->second;
}

/// Walks through the passes that wait within. Where nothing slows such a pass, its pauses are
/// exactly those of the step.
void StepWaits::find_pauses() {
  pauses_.resize(events_.size());
  for (int rank = 0; rank < plan_.rank_count(); ++rank) {
    const std::vector<Instruction>& program = plan_.programs[at(program_of(rank))].instructions;
    const RankTimes& times = model_.ranks[at(rank)].times;
    int scatter = -1, gather = -1, pass = -1;
    double now = 0, done = 0;  // of the pass: the time, and the seconds of work so far
    // The pass of `of` gets to where it has done `work`; `event` begins there, and the pass waits
    // for `before`.
    const auto reach = [&](const InstructionId& of, double work, int event, int before) {
      const int own = find(rank, of);
      if (own != pass) {
        pass = own;
        now = this->event(pass).start;
        done = 0;
      }
      now = std::min(this->event(pass).end, now + (work - done));
      done = work;
      if (event >= 0) reached_at_[event] = now;
      if (before >= 0 && end(before) > now + kSame * step_) {
        pauses_[at(pass)].push_back({before, now, std::min(this->event(pass).end, end(before))});
        now = pauses_[at(pass)].back().until;
      }
    };
    const auto need = [&](int next) {
      const InstructionId& of = event(gather).instruction;
      reach(pass_of(of), needs_of(times, of), next, gather);
    };
    for (std::size_t i = 0; i < program.size(); ++i) {
      const InstructionId& id = program[i].id;
      const int own = rank_begin(rank) + static_cast<int>(i);
      if (gathers_for_pass(id.opcode)) {
        if (gather >= 0) need(own);
        gather = own;
      } else if (sums_one_micro_batch(id)) {
        reach({Opcode::kBackward, -1, id.micro_batch},
              gradients_of(times, id.micro_batch, id.object), own, scatter);
        scatter = own;
      }
      if (i + 1 == program.size() && gather >= 0) need(-1);
    }
  }
}

double StepWaits::needs_of(const RankTimes& times, const InstructionId& gather) const {
  const bool larger = gather.micro_batch < model_.smaller_from;
  const std::size_t which = need_times(gather.opcode == Opcode::kGatherForward, larger);
  return times.needs[which * plan_.buckets.size() + at(gather.object)];
}

double StepWaits::gradients_of(const RankTimes& times, int micro_batch, int bucket) const {
  const bool larger = micro_batch < model_.smaller_from;
  return (larger ? times.larger_gradients : times.gradients)[at(bucket)];
}

double StepWaits::paused_seconds(int pass) const {
  double seconds = 0;
  for (const Pause& pause : pauses_[at(pass)]) seconds += pause.until - pause.since;
  return seconds;
}

/// Assumes that the pass was slowed evenly, but for a pass that waits within.
double StepWaits::gradients_at(int event, int backward, int bucket) const {
  const auto filled = reached_at_.find(event);
  if (filled != reached_at_.end()) return filled->second;
  const TimelineEvent& pass = this->event(backward);
  const RankTimes& times = model_.times_of(pass.rank, pass.instruction);
  const double whole = times.smaller_backward + times.step_end;  // they come in the last backward
  if (whole <= 0) return pass.end;
  const double rest = whole - times.gradients[at(bucket)];
  return pass.end - rest * (pass.end - pass.start) / whole;
}

Wait StepWaits::last_wait(int event) const {
  Wait last;
  for_each_wait(event, [&](const Wait& wait) {
    // The wait for the stream comes first, so it wins ties.
    if (last.event < 0 || wait.time > last.time + kSame * step_) last = wait;
  });
  return last;
}

void StepWaits::add_meeting(std::vector<int> events) {
  WaitMeeting meeting;
  meeting.end = step_;
  for (const int event : events) {
    meeting.start = std::max(meeting.start, arrival(event));
    meeting.end = std::min(meeting.end, end(event));
    meetings_of_[at(event)].push_back(static_cast<int>(meetings_.size()));
  }
  meeting.events = std::move(events);
  meetings_.push_back(std::move(meeting));
}

void StepWaits::add_transfers(int cut, Opcode send, Opcode recv) {
  const auto all = static_cast<int>(plan_.micro_batches);
  const auto smaller_from = static_cast<int>(plan_.smaller_from());
  add_transfers(cut, send, recv, 0, smaller_from);
  if (smaller_from < all) add_transfers(cut, send, recv, smaller_from, all);
}

/// Adds the transfers of the micro-batches [first, end), which are of one size.
void StepWaits::add_transfers(int cut, Opcode send, Opcode recv, int first, int end) {
  const Cut& of = plan_.cuts[at(cut)];
  std::set<std::pair<int, int>> pairs;  // sender, receiver
  const bool back = send == Opcode::kSendGradient;
  for (const int sender : plan_.stages[at(back ? of.to : of.from)].all_ranks()) {
    for (const Transfer& t : transfers(plan_, cut, sender, first, back)) {
      if (!back || of.tensors[at(t.tensor)].gradient) pairs.emplace(sender, t.peer);
    }
  }
  for (const auto& [from, to] : pairs) {
    for (int m = first; m < end; ++m) {
      add_meeting({find(from, {send, cut, m}), find(to, {recv, cut, m})});
    }
  }
}

void StepWaits::add_collective(InstructionId id, const std::vector<int>& ranks) {
  std::vector<int> events;
  for (const int rank : ranks) {
    if (index_[at(program_of(rank))].contains(key_of(id))) events.push_back(find(rank, id));
  }
  if (!events.empty()) add_meeting(std::move(events));
}

/// Instructions of several programs that run as one (the ends of transfers, the members of a
/// report), and the nodes that wait for them.
struct StepWaits::Node {
  std::vector<std::pair<int, int>> instructions;  // program, index
  std::vector<int> next;
  int waits = 0;
};

std::vector<StepWaits::Node> StepWaits::nodes() const {
  std::vector<Node> nodes;
  std::map<std::tuple<int, Opcode, int, int>, int> known;
  std::vector<std::vector<int>> node_of(plan_.programs.size());
  for (std::size_t s = 0; s < plan_.programs.size(); ++s) {
    const std::vector<Instruction>& instructions = plan_.programs[s].instructions;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      const auto [entry, added] = known.try_emplace(
          group_of(static_cast<int>(s), instructions[i].id), static_cast<int>(nodes.size()));
      if (added) nodes.emplace_back();
      node_of[s].push_back(entry->second);
      nodes[at(entry->second)].instructions.emplace_back(static_cast<int>(s), static_cast<int>(i));
    }
  }
  for (std::size_t s = 0; s < waits_.size(); ++s) {
    for (std::size_t i = 0; i < waits_[s].size(); ++i) {
      for (const ProgramWait& wait : waits_[s][i]) {
        nodes[at(node_of[s][at(wait.instruction)])].next.push_back(node_of[s][i]);
        ++nodes[at(node_of[s][i])].waits;
      }
    }
  }
  return nodes;
}

std::vector<std::vector<int>> StepWaits::in_order() const {
  std::vector<Node> nodes = this->nodes();
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    if (nodes[at(i)].waits == 0) order.push_back(i);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {  // `order` grows while it is walked
    for (const int next : nodes[at(order[i])].next) {
      if (--nodes[at(next)].waits == 0) order.push_back(next);
    }
  }
  AGPCS_CHECK(order.size() == nodes.size(), "{} of {} instructions wait for each other",
              nodes.size() - order.size(), nodes.size());
  std::vector<std::vector<int>> groups;
  for (const int node : order) {
    std::vector<int>& events = groups.emplace_back();
    for (const auto& [program, index] : nodes[at(node)].instructions) {
      const PlanStage& stage = plan_.stages[at(plan_.programs[at(program)].stage)];
      for (const int rank : stage.all_ranks()) {
        events.push_back(rank_begin(rank) + index);
      }
    }
  }
  return groups;
}

}  // namespace agpcs
