// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/schedule_all_reduce.h"

#include "ir/plan/flow.h"
#include "runtime/support/sum.h"

#include <limits>
#include <utility>

namespace agpcs {
namespace {

// Segments of each message of a round that are asked for ahead, for the reason that a ring has
// (runtime/transport/wire_collectives.cc); and the limit for all messages together.
constexpr std::size_t kSegmentsAhead = 8, kMostAhead = 32;

ElementRange range_of(const FlowParts& parts, int part) {
  const auto width = static_cast<std::int64_t>(size_of(parts.buffer.type));
  return part_of(static_cast<std::int64_t>(parts.buffer.bytes) / width, parts.parts, part);
}

}  // namespace

std::size_t FlowParts::bytes_of(int part) const {
  return static_cast<std::size_t>(range_of(*this, part).size()) * size_of(buffer.type);
}

std::size_t FlowParts::segments_of(int part) const {
  return (bytes_of(part) + kSegmentBytes - 1) / kSegmentBytes;
}

std::size_t FlowParts::bytes_of(int part, std::size_t segment) const {
  return std::min(kSegmentBytes, bytes_of(part) - segment * kSegmentBytes);
}

char* FlowParts::place_of(int part, std::size_t segment) const {
  const auto begin = static_cast<std::size_t>(range_of(*this, part).begin);
  return static_cast<char*>(buffer.data) + begin * size_of(buffer.type) + segment * kSegmentBytes;
}

void ScheduleAllReduce::begin(const FlowProgram& program, const Buffer& buffer,
                              std::uint64_t slot) {
  program_ = &program;
  parts_ = {buffer, program.chunks};
  slot_ = slot;
  stride_ = std::min(FlowParts::kSegmentBytes, parts_.bytes_of(0));  // part 0 is a longest one
  posting_ = awaiting_ = SegmentWalk(program.receives, parts_);
  posted_ = taken_ = 0;
  arriving_.resize(std::min(kSegmentsAhead * program.widest, std::max(kMostAhead, program.widest)));
  scratch_.resize(std::max(scratch_.size(), arriving_.size() * stride_));
  done_.assign(program.receives.size(), 0);
  lines_.resize(std::max(lines_.size(), program.lines.size()));
  for (std::size_t i = 0; i < program.lines.size(); ++i) {
    lines_[i].messages = &program.lines[i];
    lines_[i].next = SegmentWalk(program.lines[i].sends, parts_);
  }
}

Status ScheduleAllReduce::all_reduce(const FlowProgram& program, const Buffer& buffer,
                                     std::uint64_t slot) {
  if (buffer.bytes == 0) return {};
  begin(program, buffer, slot);
  const Status status = program.rounds.empty() ? run_ahead() : run_rounds();
  for (auto& message : arriving_) message.reset();
  for (Line& line : lines_) line.sent.clear();
  told_.clear();
  heard_.clear();
  return status;
}

Status ScheduleAllReduce::run_ahead() {
  open_round_ = std::numeric_limits<int>::max();
  // Receives go first: the request for a segment waits behind what is sent.
  AGPCS_RETURN_IF_ERROR(post_receives());
  AGPCS_RETURN_IF_ERROR(post_sends());
  while (!awaiting_.over()) {
    const std::size_t receive = awaiting_.message();
    AGPCS_RETURN_IF_ERROR(take());
    AGPCS_RETURN_IF_ERROR(post_receives());
    for (const int line : program_->receives[receive].lines) {
      AGPCS_RETURN_IF_ERROR(post_sends(lines_[static_cast<std::size_t>(line)]));
    }
  }
  return finish_sends();
}

Status ScheduleAllReduce::run_rounds() {
  for (const FlowRound& round : program_->rounds) {
    AGPCS_RETURN_IF_ERROR(begin_round(round));
    AGPCS_RETURN_IF_ERROR(post_receives());
    AGPCS_RETURN_IF_ERROR(post_sends());
    while (!awaiting_.over(round.round)) {
      AGPCS_RETURN_IF_ERROR(take());
      AGPCS_RETURN_IF_ERROR(post_receives());
    }
    AGPCS_RETURN_IF_ERROR(finish_sends());
  }
  for (const auto& [peer, word] : told_) AGPCS_RETURN_IF_ERROR(awaited_.wait(*word, peer));
  return {};
}

Status ScheduleAllReduce::begin_round(const FlowRound& round) {
  static constexpr char kWord = 0;  // only its arrival matters
  words_.resize(std::max(words_.size(), round.waits_for.size()));
  heard_.clear();
  for (std::size_t i = 0; i < round.waits_for.size(); ++i) {
    const int peer = round.waits_for[i];
    AGPCS_TRY(auto word, wire_.recv(&words_[i], 1, peer, slot_));
    heard_.emplace_back(peer, std::move(word));
  }
  for (const int peer : round.tells) {
    AGPCS_TRY(auto word, wire_.send(&kWord, 1, peer, slot_));
    told_.emplace_back(peer, std::move(word));
  }
  for (const auto& [peer, word] : heard_) AGPCS_RETURN_IF_ERROR(awaited_.wait(*word, peer));
  open_round_ = round.round;
  return {};
}

// A gathered chunk is received in its place although nobody has waited for sends from there: it
// only comes after its owner has the sum, and so after all members, including the receivers of
// those sends, have added what came.
Status ScheduleAllReduce::post_receives() {
  for (; posted_ < taken_ + arriving_.size() && !posting_.over(open_round_); posting_.advance()) {
    const FlowReceive& receive = program_->receives[posting_.message()];
    const std::size_t place = posted_++ % arriving_.size();
    char* to = receive.adds ? scratch_.data() + place * stride_
                            : parts_.place_of(receive.chunk, posting_.segment());
    AGPCS_TRY(arriving_[place], wire_.recv(to, parts_.bytes_of(receive.chunk, posting_.segment()),
                                           receive.peer, slot_));
  }
  return {};
}

Status ScheduleAllReduce::take() {
  const FlowReceive& receive = program_->receives[awaiting_.message()];
  const std::size_t segment = awaiting_.segment();
  const std::size_t place = taken_++ % arriving_.size();
  AGPCS_RETURN_IF_ERROR(awaited_.wait(*arriving_[place], receive.peer));
  if (receive.adds) {
    add_into(parts_.place_of(receive.chunk, segment), scratch_.data() + place * stride_,
             parts_.bytes_of(receive.chunk, segment) / size_of(parts_.buffer.type),
             parts_.buffer.type);
  }
  done_[awaiting_.message()] = segment + 1;
  awaiting_.advance();
  return {};
}

Status ScheduleAllReduce::post_sends() {
  for (std::size_t i = 0; i < program_->lines.size(); ++i) {
    AGPCS_RETURN_IF_ERROR(post_sends(lines_[i]));
  }
  return {};
}

Status ScheduleAllReduce::post_sends(Line& line) {
  for (; !line.next.over(open_round_); line.next.advance()) {
    const FlowSend& send = line.messages->sends[line.next.message()];
    const std::size_t segment = line.next.segment();
    if (send.after >= 0 && done_[static_cast<std::size_t>(send.after)] <= segment) return {};
    AGPCS_TRY(auto message,
              wire_.send(parts_.place_of(send.chunk, segment), parts_.bytes_of(send.chunk, segment),
                         line.messages->peer, slot_));
    line.sent.push_back(std::move(message));
  }
  return {};
}

Status ScheduleAllReduce::finish_sends() {
  for (Line& line : lines_) {
    for (const auto& message : line.sent) {
      AGPCS_RETURN_IF_ERROR(awaited_.wait(*message, line.messages->peer));
    }
    line.sent.clear();
  }
  return {};
}

}  // namespace agpcs
