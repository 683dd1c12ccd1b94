// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace agpcs {
namespace {

/// Waiting instructions that a message lists.
constexpr std::size_t kShown = 8;

}  // namespace

StepState::StepState(const Plan& plan, const StepModel& model) : plan_(plan), model_(model) {
  ranks_.resize(model.ranks.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const auto& program = program_of(static_cast<int>(r));
    ranks_[r].waits.reserve(program.size());
    for (const StepInstruction& step : program) ranks_[r].waits.push_back(step.waits);
    ranks_[r].done.resize(program.size());
  }
  const auto micro_batches = static_cast<std::size_t>(plan.micro_batches);
  arrivals_.resize(model.channels.size() * micro_batches + plan.buckets.size() + 1);
  all_ranks_.resize(ranks_.size());
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
}

const std::vector<StepInstruction>& StepState::program_of(int rank) const {
  const int stage = model_.ranks[static_cast<std::size_t>(rank)].stage;
  return model_.programs[static_cast<std::size_t>(stage)];
}

bool StepState::satisfy(int rank, int index) {
  return --ranks_[static_cast<std::size_t>(rank)].waits[static_cast<std::size_t>(index)] == 0;
}

bool StepState::begin(int rank, int index, double now) {
  const StepInstruction& step = program_of(rank)[static_cast<std::size_t>(index)];
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  const auto stream = static_cast<std::size_t>(step.stream);
  state.running[stream] = index;
  state.start[stream] = now;
  int meetings = 0;
  if (step.stream != StreamKind::kCompute) {
    for_each_meeting(rank, step, [&](const Meeting&) { ++meetings; });
  }
  state.pending[stream] = meetings;
  // Until the first of them moves, the start is not known.
  if (meetings > 0) state.start[stream] = -1;
  return meetings > 0 || step.stream == StreamKind::kCompute;
}

double StepState::finish(int rank, int index) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  const auto stream =
      static_cast<std::size_t>(program_of(rank)[static_cast<std::size_t>(index)].stream);
  state.done[static_cast<std::size_t>(index)] = true;
  state.running[stream] = -1;
  return state.start[stream];
}

int StepState::collective_object(InstructionId id) const {
  const int bucket =
      id.opcode == Opcode::kAllReduce ? id.object : static_cast<int>(plan_.buckets.size());
  return channel_count() + bucket;
}

const std::vector<int>& StepState::members(const Meeting& meeting) const {
  const auto bucket = static_cast<std::size_t>(meeting.object - channel_count());
  if (bucket == plan_.buckets.size()) return all_ranks_;
  return plan_.stages[static_cast<std::size_t>(plan_.buckets[bucket].stage)].ranks;
}

std::size_t StepState::arrivals_index(const Meeting& meeting) const {
  const auto micro_batches = static_cast<std::size_t>(plan_.micro_batches);
  const auto object = static_cast<std::size_t>(meeting.object);
  if (is_channel(meeting)) {
    return object * micro_batches + static_cast<std::size_t>(meeting.micro_batch);
  }
  return model_.channels.size() * micro_batches + object - model_.channels.size();
}

bool StepState::arrive(const Meeting& meeting) {
  const int needed = is_channel(meeting) ? 2 : static_cast<int>(members(meeting).size());
  return ++arrivals_[arrivals_index(meeting)] == needed;
}

const Exchange& StepState::exchange_of(const Meeting& meeting) const {
  if (is_channel(meeting)) {
    return model_.channels[static_cast<std::size_t>(meeting.object)].exchange;
  }
  const auto bucket = static_cast<std::size_t>(meeting.object - channel_count());
  return bucket == plan_.buckets.size() ? model_.report : model_.all_reduces[bucket];
}

void StepState::start_moving(int rank, StreamKind stream, double now) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  ++state.moving;
  double& start = state.start[static_cast<std::size_t>(stream)];
  if (start < 0) start = now;
}

bool StepState::stop_moving(int rank, StreamKind stream) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  --state.moving;
  return --state.pending[static_cast<std::size_t>(stream)] == 0;
}

/// The ranks that did not come to the meetings of an instruction that runs.
std::string StepState::missing_ranks(int rank, const StepInstruction& instruction) const {
  std::set<int> missing;
  for_each_meeting(rank, instruction, [&](const Meeting& meeting) {
    for_each_participant(meeting, [&](int other, StreamKind stream) {
      if (other == rank) return;
      const RankState& state = ranks_[static_cast<std::size_t>(other)];
      const int index = state.running[static_cast<std::size_t>(stream)];
      bool there = false;
      if (index >= 0) {
        const StepInstruction& its = program_of(other)[static_cast<std::size_t>(index)];
        for_each_meeting(other, its, [&](const Meeting& m) {
          there |= m.object == meeting.object && m.micro_batch == meeting.micro_batch;
        });
      }
      if (!there) missing.insert(other);
    });
  });
  return fmt::format("waits for rank {}", fmt::join(missing, ", "));
}

std::string StepState::describe_wait(int rank, int index) const {
  const RankState& state = ranks_[static_cast<std::size_t>(rank)];
  const auto& program = program_of(rank);
  const StepInstruction& step = program[static_cast<std::size_t>(index)];
  const int stage = model_.ranks[static_cast<std::size_t>(rank)].stage;
  std::string reason = "waits for gradients";
  if (state.running[static_cast<std::size_t>(step.stream)] == index) {
    reason = missing_ranks(rank, step);
  } else {
    for (std::size_t i = 0; i < program.size(); ++i) {
      const std::vector<int>& next = program[i].next;
      if (state.done[i] || std::find(next.begin(), next.end(), index) == next.end()) continue;
      reason = "waits for " + title_of(plan_, stage, program[i].id);
      break;
    }
  }
  return fmt::format("  rank {}: {} {}", rank, title_of(plan_, stage, step.id), reason);
}

Status StepState::check_finished() const {
  std::vector<std::string> waits;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const auto& program = program_of(static_cast<int>(r));
    std::array<bool, kStreamKindCount> seen = {};
    for (std::size_t i = 0; i < program.size(); ++i) {
      bool& first = seen[static_cast<std::size_t>(program[i].stream)];
      if (ranks_[r].done[i] || first) continue;
      first = true;
      waits.push_back(describe_wait(static_cast<int>(r), static_cast<int>(i)));
    }
  }
  if (waits.empty()) return {};
  std::string text = "the plan cannot finish; the first instruction of each stream that waits:";
  for (std::size_t i = 0; i < std::min(kShown, waits.size()); ++i) text += "\n" + waits[i];
  if (waits.size() > kShown) text += fmt::format("\n  and {} more", waits.size() - kShown);
  return internal_error(text);
}

}  // namespace agpcs
