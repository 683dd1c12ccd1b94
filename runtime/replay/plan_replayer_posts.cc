// SPDX-License-Identifier: Apache-2.0
// Messages and collectives: when they are posted, from which memory, and who waits for them.
#include "ir/plan/lookup.h"
#include "runtime/replay/plan_replayer.h"

#include <fmt/format.h>

#include <utility>

namespace agpcs {

// Posts the bucket's reduction within a backward pass, as soon as it is its turn, while the pass
// goes on.
void PlanReplayer::bucket_ready(int bucket) {
  if (!divides_gradients(bucket)) {
    Status status = check_gradient(bucket);
    if (status.ok()) status = rounding_.round(bucket, executor_);
    if (!status.ok()) return fail(at(stream(StreamKind::kCompute)[computed_]).name, status);
  }
  ++ready_[static_cast<std::size_t>(bucket)];
  post();
}

// Called within a pass. The gathers before this one in the pass are of buckets that it has not
// asked for, because nothing is to be computed with them.
Status PlanReplayer::need(int bucket) {
  const InstructionId& pass = at(stream(StreamKind::kCompute)[computed_]).id;
  std::size_t end = needed_;
  while (end < program_.gathers.size() && at(program_.gathers[end]).id.object != bucket &&
         pass_of(at(program_.gathers[end]).id) == pass) {
    ++end;
  }
  if (end == program_.gathers.size() || pass_of(at(program_.gathers[end]).id) != pass) {
    return {};  // it has been needed before in this pass
  }
  while (needed_ <= end) {
    const std::size_t index = program_.gathers[needed_++];
    skip_gathers();
    post();
    if (!failure_.ok()) return failure_;
    if (posted_[index].last == 0) {
      return internal_error(
          fmt::format("'{}' is behind what the pass has not made yet, but needed", at(index).name));
    }
    const std::int64_t begin = steady_nanoseconds();
    if (!order_after(Stream::kCollective, index)) return failure_;
    paused_ += steady_nanoseconds() - begin;
  }
  return {};
}

Status PlanReplayer::need_rest(const InstructionId& pass) {
  while (needed_ < program_.gathers.size() && pass_of(at(program_.gathers[needed_]).id) == pass) {
    AGPCS_RETURN_IF_ERROR(need(at(program_.gathers[needed_]).id.object));
  }
  return {};
}

void PlanReplayer::skip_gathers() {
  while (needed_ < program_.gathers.size() && skips(at(program_.gathers[needed_]))) ++needed_;
}

bool PlanReplayer::fill(std::size_t index) {
  if (!keep_scattered()) return false;
  const int bucket = at(index).id.object;
  Status status = executor_.fill_bucket(bucket);
  if (status.ok()) status = check_gradient(bucket);
  if (status.ok()) status = rounding_.round(bucket, executor_);
  if (!status.ok()) fail(at(index).name, status);
  scattering_ = index;
  return failure_.ok();
}

bool PlanReplayer::fill_slices(std::size_t index) {
  const int bucket = at(index).id.object;
  const Buffer* const rounded = rounding_.rounded(bucket);
  const Result<Buffer> held =
      rounded != nullptr ? Result<Buffer>(*rounded) : executor_.bucket(bucket);
  if (held.ok()) {
    slices_.fill(at(index), index, *held);
  } else {
    fail(at(index).name, held.status());
  }
  return failure_.ok();
}

bool PlanReplayer::keep_scattered() {
  if (scattering_ == kNoInstruction) return true;
  const std::size_t index = std::exchange(scattering_, kNoInstruction);
  const int bucket = at(index).id.object;
  const std::int64_t begin = steady_nanoseconds();
  if (!order_after(Stream::kCollective, index)) return false;
  paused_ += steady_nanoseconds() - begin;
  Status status = rounding_.rounded(bucket) == nullptr ? Status() : take_sum(bucket);
  if (status.ok()) status = executor_.keep_part(bucket);
  if (!status.ok()) fail(at(index).name, status);
  return failure_.ok();
}

void PlanReplayer::post() {
  for (std::size_t s = 0; s < kStreams.size(); ++s) {
    const std::vector<std::size_t>& instructions = stream(kKinds[s]);
    order_[s].advance(
        instructions.size(),
        [&](std::size_t i) { return failure_.ok() && may_start(at(instructions[i])); },
        [&](std::size_t i) { post(instructions[i]); });
  }
}

bool PlanReplayer::may_start(const ResolvedInstruction& instruction) const {
  if (computed_ < instruction.release) return false;
  if (instruction.id.opcode == Opcode::kNorm) return squared_ || skips(instruction);
  if (skips(instruction)) return true;
  if (gathers_for_pass(instruction.id.opcode)) return instruction.gather <= needed_;
  if (!sums_gradients(instruction.id.opcode)) return true;
  return ready_[static_cast<std::size_t>(instruction.id.object)] >= instruction.reports;
}

void PlanReplayer::post(std::size_t index) {
  const ResolvedInstruction& instruction = at(index);
  if (records_ && index == report_at_) return;  // the report goes through the host's memory
  const StreamKind kind = stream_of(instruction.id.opcode);
  if (sums_one_micro_batch(instruction.id) && !skips(instruction) && !fill(index)) return;
  Ticket& newest = newest_[static_cast<std::size_t>(transport_stream(kind))];
  const std::size_t parts = skips(instruction)                ? 0
                            : !instruction.slices.empty()     ? instruction.slices.size()
                            : kind == StreamKind::kCollective ? 1
                                                              : instruction.transfers.size();
  if (parts > 0 && !instruction.slices.empty() && !fill_slices(index)) return;
  posted_[index] = {newest + 1, newest + parts};
  for (std::size_t part = 0; part < parts; ++part) {
    const auto ticket = post(index, part);
    if (!ticket.ok()) return fail(instruction.name, ticket.status());
    newest = *ticket;
  }
  posted_[index] = {newest - parts + 1, newest};
}

Result<Ticket> PlanReplayer::post(std::size_t index, std::size_t part) {
  const ResolvedInstruction& instruction = at(index);
  if (!instruction.slices.empty()) {
    return transport_.all_reduce(slices_.buffer_of(instruction, index, part),
                                 instruction.slices[part].group, instruction.algorithm);
  }
  AGPCS_TRY(const Buffer buffer, buffer_of(instruction, part));
  switch (instruction.id.opcode) {
    case Opcode::kSend:
    case Opcode::kSendGradient:
      return transport_.send(buffer, instruction.transfers[part].transfer.peer,
                             instruction.transfers[part].tag);
    case Opcode::kRecv:
    case Opcode::kRecvGradient:
      return transport_.recv(buffer, instruction.transfers[part].transfer.peer,
                             instruction.transfers[part].tag);
    case Opcode::kReduceScatter:
      return transport_.reduce_scatter(buffer, instruction.parts, instruction.group,
                                       instruction.algorithm);
    case Opcode::kAllGather:
    case Opcode::kGatherForward:
    case Opcode::kGatherBackward:
      return transport_.all_gather(buffer, instruction.parts, instruction.group,
                                   instruction.algorithm);
    default:
      if (instruction.flow >= 0) return transport_.all_reduce_flow(buffer, instruction.flow);
      return transport_.all_reduce(buffer, instruction.group, instruction.algorithm);
  }
}

Result<Buffer> PlanReplayer::buffer_of(const ResolvedInstruction& instruction, std::size_t part) {
  const int object = instruction.id.object, micro_batch = instruction.id.micro_batch;
  switch (instruction.id.opcode) {
    case Opcode::kNorm:
      return Buffer{&squares_, sizeof squares_, DType::kFp64, false};
    case Opcode::kReport:
      return report_buffer();
    case Opcode::kAllGather:
      return executor_.values(object);
    case Opcode::kGatherForward:
    case Opcode::kGatherBackward:
      return executor_.gather(object);
    case Opcode::kAllReduce:
    case Opcode::kReduceScatter:
      if (const Buffer* rounded = rounding_.rounded(object)) return *rounded;
      return executor_.bucket(object);
    case Opcode::kSendGradient:
    case Opcode::kRecvGradient:
      return executor_.gradient(object, instruction.transfers[part].transfer, micro_batch);
    default:
      return executor_.activation(object, instruction.transfers[part].transfer, micro_batch);
  }
}

Buffer PlanReplayer::report_buffer() {
  report_[0] = executor_.loss();
  std::copy(to_report_.begin(), to_report_.end(), report_.begin() + 1);
  const bool all = statistics_every_ > 0 && (step_ + 1) % statistics_every_ == 0;
  const std::size_t words = all ? report_.size() : 2;
  std::fill(report_.begin() + static_cast<std::ptrdiff_t>(words), report_.end(), 0.0);
  return {report_.data(), words * sizeof(double), DType::kFp64, false};
}

bool PlanReplayer::finish_step() {
  for (std::size_t s = 0; s < kStreams.size(); ++s) {
    const std::vector<std::size_t>& instructions = stream(kKinds[s]);
    if (!instructions.empty() && !wait(kStreams[s], instructions.back())) return false;
  }
  return true;
}

bool PlanReplayer::order_after(Stream stream, std::size_t index) {
  const Status status = transport_.order_after(stream, posted_[index].last, options_.limit);
  return status.ok() || fail_at(stream, index, status);
}

bool PlanReplayer::wait(Stream stream, std::size_t index) {
  const Status status = transport_.wait(stream, posted_[index].last, options_.limit);
  return status.ok() || fail_at(stream, index, status);
}

bool PlanReplayer::fail_at(Stream stream, std::size_t index, const Status& status) {
  // All wait for the first instruction that is not done, so the error names that one.
  std::size_t stuck = index;
  for (const std::size_t earlier : this->stream(stream_of(at(index).id.opcode))) {
    stuck = earlier;
    if (earlier == index) break;
    if (!transport_.wait(stream, posted_[earlier].last, std::chrono::milliseconds(0)).ok()) break;
  }
  fail(at(stuck).name, status);
  return false;
}

void PlanReplayer::take_reported() {
  std::copy(report_.begin() + 1, report_.end(), reported_.begin());
}

void PlanReplayer::note_times() {
  InstructionTime* times = times_.row(step_);
  for (const std::size_t index : stream(StreamKind::kCompute)) {
    const InstructionTime ran = executor_.time_of(at(index).id);
    if (ran.end != 0 || graph_) times[index] = ran;
  }
  for (std::size_t s = 0; s < kStreams.size(); ++s) {
    for (const std::size_t index : stream(kKinds[s])) {
      const Posted& posted = posted_[index];
      times[index] = {};
      if (posted.first > posted.last) continue;  // nothing to move
      times[index].begin = time_of(kStreams[s], index, posted.first).begin;
      times[index].end = time_of(kStreams[s], index, posted.last).end;
    }
  }
}

OperationTime PlanReplayer::time_of(Stream stream, std::size_t index, Ticket ticket) const {
  const bool recorded = graph_ && index != report_at_;
  return recorded ? graph_->time_of(stream, ticket) : transport_.time_of(stream, ticket);
}

// Only the first failure counts.
void PlanReplayer::fail(const std::string& what, const Status& cause) {
  if (!failure_.ok()) return;
  failure_ = Status(cause.code(), fmt::format("{}: {}: {}", name_, what, cause.message()));
  if (!records_) transport_.abort(failure_);
}

}  // namespace agpcs
