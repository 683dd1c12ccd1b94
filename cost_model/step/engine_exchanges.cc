// SPDX-License-Identifier: Apache-2.0
// The part of the engine that moves messages and collectives, from when their ends arrive.
#include "cost_model/step/engine.h"

#include <algorithm>
#include <cstddef>

namespace agpcs {

void StepEngine::arrive_at_channels(int rank, const PrecedenceGraph::Instruction& instruction) {
  const std::span<const int> channels = step_->channels_of(step_->ranks[at(rank)], instruction.id);
  Rank& state = ranks_[at(rank)];
  const std::size_t stream = at(static_cast<int>(instruction.stream));
  state.pending[stream] = static_cast<int>(channels.size());
  state.owed += static_cast<double>(channels.size()) * post_seconds(rank);
  if (channels.empty()) {
    finish(rank, state.running[stream]);
    return;
  }
  state.start[stream] = -1;  // the start is unknown until the first of them moves
  for (const int channel : channels) {
    const int object = channel * step_->micro_batches + instruction.id.micro_batch;
    if (++arrivals_[at(object)] == 2) start_exchange(object);
  }
}

void StepEngine::arrive_at_collective(int rank, const PrecedenceGraph::Instruction& instruction) {
  const std::size_t collective = step_->collective_of(step_->ranks[at(rank)], instruction.id);
  Rank& state = ranks_[at(rank)];
  if (most_ < kAll && !step_->least_seconds.empty()) {
    expect_end_of_sums(rank, step_->least_seconds[collective]);
  }
  state.pending[at(static_cast<int>(StreamKind::kCollective))] = 1;
  state.owed += post_seconds(rank);
  state.start[at(static_cast<int>(StreamKind::kCollective))] = -1;
  const int object = static_cast<int>(step_->channels.size()) * step_->micro_batches +
                     static_cast<int>(collective);
  const int group = step_->group_of_collective(collective);
  const int members = group < 0 ? static_cast<int>(ranks_.size())
                                : step_->group_first[at(group) + 1] - step_->group_first[at(group)];
  if (++arrivals_[at(object)] < members) return;
  arrivals_[at(object)] = 0;  // those of the next micro-batch come after its end
  start_exchange(object);
}

/// Calls `f(rank, stream)` for every participant. `object`: as in RunningExchange.
template <typename F>
void StepEngine::for_each_participant(int object, F f) const {
  if (object < 0) {
    return for_each_member(~object, [&](int rank) { f(rank, StreamKind::kCompute); });
  }
  const int collective = object - static_cast<int>(step_->channels.size()) * step_->micro_batches;
  if (collective < 0) {
    const FlatChannel& channel = step_->channels[at(object / step_->micro_batches)];
    f(channel.from, StreamKind::kSend);
    f(channel.to, StreamKind::kRecv);
    return;
  }
  const int group = step_->group_of_collective(at(collective));
  if (group < 0) {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      f(rank, StreamKind::kCollective);
    }
    return;
  }
  for (int i = step_->group_first[at(group)]; i < step_->group_first[at(group) + 1]; ++i) {
    f(step_->group_members[at(i)], StreamKind::kCollective);
  }
}

void StepEngine::start_exchange(int object) {
  const int collective = object - static_cast<int>(step_->channels.size()) * step_->micro_batches;
  if (collective < 0) {
    const FlatChannel& channel = step_->channels[at(object / step_->micro_batches)];
    start_exchange(*channel.exchange, channel.bytes, object);
  } else {
    start_exchange(*step_->collectives[at(collective)], FlatChannel::kOf, object);
  }
}

void StepEngine::start_exchange(const Exchange& exchange, std::int64_t bytes, int object) {
  if (free_exchanges_.empty()) {
    free_exchanges_.push_back(static_cast<int>(exchanges_.size()));
    exchanges_.emplace_back();
  }
  const int id = free_exchanges_.back();
  free_exchanges_.pop_back();
  exchanges_[at(id)] = {&exchange, bytes, object, 0, 0};
  double overhead = 0;
  for_each_participant(object, [&](int rank, StreamKind stream) {
    account(rank);
    Rank& state = ranks_[at(rank)];
    ++state.moving;
    double& start = state.start[at(static_cast<int>(stream))];
    if (start < 0) start = now_;
    overhead = std::max(overhead, effects_[at(step_->ranks[at(rank)].device)].overhead);
  });
  if (overhead > 0) {
    push(now_ + overhead, EventKind::kBegun, id, 0);
  } else {
    start_phase(id);
  }
}

void StepEngine::start_phase(int id) {
  const RunningExchange& running = exchanges_[at(id)];
  if (running.phase == running.exchange->size()) {
    end_exchange(id);
    return;
  }
  push(now_ + (*running.exchange)[running.phase].latency, EventKind::kFlowing, id, 0);
}

void StepEngine::start_flows(int id) {
  RunningExchange& running = exchanges_[at(id)];
  for (const Flow& flow : (*running.exchange)[running.phase].flows) {
    const std::int64_t bytes = running.bytes == FlatChannel::kOf ? flow.bytes : running.bytes;
    if (bytes == 0 || flow.links.empty()) continue;
    ++running.flows_left;
    network_.start(flow, bytes, id, now_);
    if (detail_.bytes && running.object >= 0) count_bytes(flow, bytes);
  }
  if (running.flows_left == 0) next_phase(id);
}

void StepEngine::count_bytes(const Flow& flow, std::int64_t bytes) {
  for (const LinkId link : flow.links) run_.link_bytes[at(link)] += bytes;
  for (const DeviceId sender : flow.senders) {
    run_.ranks[at(rank_of_[at(sender)])].bytes_sent += bytes;
  }
}

void StepEngine::end_flow(const FlowEnd& end) {
  const int id = network_.finish(end);
  if (--exchanges_[at(id)].flows_left == 0) next_phase(id);
}

void StepEngine::next_phase(int id) {
  ++exchanges_[at(id)].phase;
  start_phase(id);
}

void StepEngine::end_exchange(int id) {
  const int object = exchanges_[at(id)].object;
  free_exchanges_.push_back(id);
  if (object < 0) {
    end_exchange_of_team(~object);
    return;
  }
  for_each_participant(object, [&](int rank, StreamKind stream) {
    account(rank);
    Rank& state = ranks_[at(rank)];
    --state.moving;
    if (--state.pending[at(static_cast<int>(stream))] == 0) {
      finish(rank, state.running[at(static_cast<int>(stream))]);
    }
  });
}

}  // namespace agpcs
