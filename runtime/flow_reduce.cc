// SPDX-License-Identifier: Apache-2.0
#include "runtime/flow_reduce.h"

#include "ir/plan_flow.h"
#include "runtime/sum.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kSegmentBytes = std::size_t{1} << 20;
// Segments that a lane asks for ahead of the one it awaits, as a ring does (runtime/all_reduce.cc).
constexpr std::size_t kAhead = 8;

// Far enough away to mean "until the wire fails".
Deadline no_deadline() { return std::chrono::steady_clock::now() + std::chrono::hours(24 * 365); }

}  // namespace

/// A segment that comes in.
struct FlowReducer::Arrival {
  int receive = -1;  ///< -1: there are no more
  std::size_t segment = 0;
};

/// Walks over the segments of a lane; empty chunks have none.
class FlowReducer::Segments {
 public:
  Segments() = default;
  Segments(const FlowReducer& reducer, const std::vector<int>& receives)
      : reducer_(&reducer), receives_(&receives) {
    skip_what_is_over();
  }

  Arrival next() {
    if (at_ == receives_->size()) return {};
    const Arrival arrival = {(*receives_)[at_], segment_++};
    skip_what_is_over();
    return arrival;
  }

 private:
  void skip_what_is_over() {
    while (at_ < receives_->size() && segment_ == segments()) {
      ++at_;
      segment_ = 0;
    }
  }
  std::size_t segments() const {
    const auto receive = static_cast<std::size_t>((*receives_)[at_]);
    return reducer_->segments_of(reducer_->program_->receives[receive].chunk);
  }

  const FlowReducer* reducer_ = nullptr;
  const std::vector<int>* receives_ = nullptr;
  std::size_t at_ = 0, segment_ = 0;
};

/// Receives of one thread.
struct FlowReducer::Lane {
  std::size_t index = 0;
  Segments posting, awaiting;
  std::size_t posted = 0, taken = 0;
  std::array<std::unique_ptr<WireMessage>, kAhead> arriving;
  std::vector<char> scratch;  // kAhead segments
};

/// Messages to one peer. One thread at a time posts them; whoever finds it busy leaves them to it.
struct FlowReducer::Line {
  const FlowLine* messages = nullptr;
  std::size_t next = 0, segment = 0;  // the first that has not left
  bool busy = false;
  std::vector<std::unique_ptr<WireMessage>> sent;
};

FlowReducer::FlowReducer(Wire& wire) : wire_(wire) {
  for (std::atomic<int>& peer : waiting_for_) peer = -1;
}

FlowReducer::~FlowReducer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int FlowReducer::waiting_for() const {
  for (const std::atomic<int>& waiting : waiting_for_) {
    const int peer = waiting.load(std::memory_order_relaxed);
    if (peer >= 0) return peer;
  }
  return -1;
}

void FlowReducer::prepare(const FlowProgram& program) {
  while (lanes_.size() < program.lanes.size()) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->index = lanes_.size() - 1;
  }
  while (lines_.size() < program.lines.size()) lines_.push_back(std::make_unique<Line>());
  done_.reserve(program.receives.size());
  while (threads_.size() + 1 < program.lanes.size()) {
    threads_.emplace_back([this, lane = threads_.size() + 1] { run_lane_thread(lane); });
  }
}

void FlowReducer::run_lane_thread(std::size_t lane) {
  std::uint64_t known = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || called_ > known; });
    if (stopping_) return;
    known = called_;
    if (lane >= active_) continue;
    lock.unlock();
    const Status status = run_lane(*lanes_[lane]);
    if (!status.ok()) fail(status);
    lock.lock();
    --running_;
    changed_.notify_all();
  }
}

void FlowReducer::run_other_lanes(std::size_t lanes) {
  {
    const std::lock_guard lock(mutex_);
    active_ = lanes;
    running_ = lanes - 1;
    ++called_;
  }
  changed_.notify_all();
}

void FlowReducer::await_other_lanes() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ == 0; });
}

void FlowReducer::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;  // `status` is its echo
    failure_ = status;
  }
  changed_.notify_all();
  wire_.cancel(status);  // the other lanes wait there
}

char* FlowReducer::place(int chunk, std::size_t segment) const {
  const auto width = static_cast<std::int64_t>(size_of(buffer_.type));
  const auto elements = static_cast<std::int64_t>(buffer_.bytes) / width;
  const std::int64_t begin = part_of(elements, program_->chunks, chunk).begin * width;
  return static_cast<char*>(buffer_.data) + static_cast<std::size_t>(begin) +
         segment * kSegmentBytes;
}

std::size_t FlowReducer::segments_of(int chunk) const {
  const std::size_t width = size_of(buffer_.type);
  const auto elements = static_cast<std::int64_t>(buffer_.bytes / width);
  const auto size =
      static_cast<std::size_t>(part_of(elements, program_->chunks, chunk).size()) * width;
  return (size + kSegmentBytes - 1) / kSegmentBytes;
}

std::size_t FlowReducer::segment_bytes(int chunk, std::size_t segment) const {
  const std::size_t width = size_of(buffer_.type);
  const auto elements = static_cast<std::int64_t>(buffer_.bytes / width);
  const auto size =
      static_cast<std::size_t>(part_of(elements, program_->chunks, chunk).size()) * width;
  return std::min(kSegmentBytes, size - segment * kSegmentBytes);
}

void FlowReducer::begin(const FlowProgram& program, const Buffer& buffer, std::uint64_t slot) {
  program_ = &program;
  buffer_ = buffer;
  slot_ = slot;
  failure_ = {};
  done_.assign(program.receives.size(), 0);
  stride_ = segments_of(0) == 0 ? 0 : segment_bytes(0, 0);  // the first chunk is a longest one
  for (std::size_t i = 0; i < program.lanes.size(); ++i) {
    Lane& lane = *lanes_[i];
    lane.posting = lane.awaiting = Segments(*this, program.lanes[i]);
    lane.posted = lane.taken = 0;
    if (lane.scratch.size() < kAhead * stride_) lane.scratch.resize(kAhead * stride_);
  }
  for (std::size_t i = 0; i < program.lines.size(); ++i) {
    lines_[i]->messages = &program.lines[i];
    lines_[i]->next = lines_[i]->segment = 0;
  }
}

Status FlowReducer::all_reduce(const FlowProgram& program, const Buffer& buffer,
                               std::uint64_t slot) {
  if (buffer.bytes == 0) return {};
  begin(program, buffer, slot);
  // Receives first: the word that a segment is wanted waits behind what is sent.
  Status status;
  for (std::size_t i = 0; i < program.lanes.size() && status.ok(); ++i) {
    status = post_receives(*lanes_[i]);
  }
  for (std::size_t i = 0; i < program.lines.size() && status.ok(); ++i) {
    status = post_sends(*lines_[i]);
  }
  if (status.ok()) {
    const bool several = program.lanes.size() > 1;
    if (several) run_other_lanes(program.lanes.size());
    status = run_lane(*lanes_[0]);
    if (several) {
      if (!status.ok()) fail(status);
      await_other_lanes();
      status = failure_;
    }
  }
  if (status.ok()) status = finish_sends();
  for (std::size_t i = 0; i < program.lanes.size(); ++i) {
    for (auto& message : lanes_[i]->arriving) message.reset();
  }
  for (std::size_t i = 0; i < program.lines.size(); ++i) lines_[i]->sent.clear();
  return status;
}

// What is gathered is received in its place although sends from there were not waited for: it only
// comes after its owner has the sum, and so after everybody, the receivers of those sends too, has
// added what came.
Status FlowReducer::post_receives(Lane& lane) {
  while (lane.posted < lane.taken + kAhead) {
    const Arrival arrival = lane.posting.next();
    if (arrival.receive < 0) return {};
    const FlowReceive& receive = program_->receives[static_cast<std::size_t>(arrival.receive)];
    const std::size_t window = lane.posted++ % kAhead;
    char* to = receive.adds ? lane.scratch.data() + window * stride_
                            : place(receive.chunk, arrival.segment);
    AGPCS_TRY(lane.arriving[window],
              wire_.recv(to, segment_bytes(receive.chunk, arrival.segment), receive.peer, slot_));
  }
  return {};
}

Status FlowReducer::run_lane(Lane& lane) {
  while (true) {
    const Arrival arrival = lane.awaiting.next();
    if (arrival.receive < 0) return {};
    AGPCS_RETURN_IF_ERROR(take(lane, arrival));
    AGPCS_RETURN_IF_ERROR(post_receives(lane));
    for (const int line : program_->receives[static_cast<std::size_t>(arrival.receive)].lines) {
      AGPCS_RETURN_IF_ERROR(post_sends(*lines_[static_cast<std::size_t>(line)]));
    }
  }
}

Status FlowReducer::take(Lane& lane, const Arrival& arrival) {
  const FlowReceive& receive = program_->receives[static_cast<std::size_t>(arrival.receive)];
  const std::size_t window = lane.taken++ % kAhead;
  waiting_for_[lane.index].store(receive.peer, std::memory_order_relaxed);
  const Status arrived = lane.arriving[window]->wait(no_deadline());
  waiting_for_[lane.index].store(-1, std::memory_order_relaxed);
  AGPCS_RETURN_IF_ERROR(arrived);
  if (receive.adds) {
    AGPCS_RETURN_IF_ERROR(await_turn(receive.after, arrival.segment));
    add_into(place(receive.chunk, arrival.segment), lane.scratch.data() + window * stride_,
             segment_bytes(receive.chunk, arrival.segment) / size_of(buffer_.type), buffer_.type);
  }
  {
    const std::lock_guard lock(mutex_);
    done_[static_cast<std::size_t>(arrival.receive)] = arrival.segment + 1;
  }
  if (program_->lanes.size() > 1) changed_.notify_all();
  return {};
}

Status FlowReducer::await_turn(int receive, std::size_t segment) {
  if (receive < 0) return {};
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return done_[static_cast<std::size_t>(receive)] > segment || !failure_.ok(); });
  return failure_;
}

Status FlowReducer::post_sends(Line& line) {
  std::unique_lock lock(mutex_);
  if (line.busy) return {};
  line.busy = true;
  Status status;
  while (status.ok() && line.next < line.messages->sends.size()) {
    const FlowSend& send = line.messages->sends[line.next];
    if (line.segment == segments_of(send.chunk)) {
      ++line.next;
      line.segment = 0;
      continue;
    }
    if (send.after >= 0 && done_[static_cast<std::size_t>(send.after)] <= line.segment) break;
    lock.unlock();
    auto message = wire_.send(place(send.chunk, line.segment),
                              segment_bytes(send.chunk, line.segment), line.messages->peer, slot_);
    lock.lock();
    status = message.status();
    if (!status.ok()) break;
    line.sent.push_back(std::move(*message));
    ++line.segment;
  }
  line.busy = false;
  return status;
}

Status FlowReducer::finish_sends() {
  for (std::size_t i = 0; i < program_->lines.size(); ++i) {
    waiting_for_[0].store(lines_[i]->messages->peer, std::memory_order_relaxed);
    for (const auto& message : lines_[i]->sent) {
      AGPCS_RETURN_IF_ERROR(message->wait(no_deadline()));
    }
    waiting_for_[0].store(-1, std::memory_order_relaxed);
  }
  return {};
}

}  // namespace agpcs
