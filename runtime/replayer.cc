// SPDX-License-Identifier: Apache-2.0
// The replayer: four streams, one walk over the flat program each. The caller's thread computes; a
// thread for each of send, recv and collective waits for what its next instruction needs, enqueues
// it and waits until it is done. Buffers are asked for on the caller's thread only.
#include "runtime/flat_program.h"
#include "runtime/plan_agreement.h"
#include "runtime/step_events.h"

#include <agpcs/replayer.h>

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

std::string rank_name(const Plan& plan, int rank) {
  return fmt::format("rank {} ({})", rank, device_of_rank(plan, rank));
}

class PlanReplayer final : public Replayer, private GradientListener {
 public:
  PlanReplayer(FlatProgram program, std::string name, Transport& transport, Executor& executor,
               const ReplayOptions& options);
  ~PlanReplayer() override;
  PlanReplayer(const PlanReplayer&) = delete;
  PlanReplayer& operator=(const PlanReplayer&) = delete;

  Result<StepReport> run_step() override;

 private:
  const FlatInstruction& at(std::size_t index) const { return program_.instructions[index]; }
  std::size_t released_event(std::size_t index) const { return program_.event_count + index; }

  bool compute_step();
  Status compute(const FlatInstruction& instruction);
  /// Asks for the buffers of what `computed` finished compute instructions release.
  bool release(std::size_t computed);
  Status fetch_buffers(std::size_t index);
  bool finish_streams();
  void bucket_ready(int bucket) override;

  void run_stream(StreamKind kind);
  Status communicate(std::size_t index, Stream stream);
  Result<Ticket> enqueue(std::size_t index, std::size_t part);
  void fail(const std::string& what, const Status& cause);

  const FlatProgram program_;
  const std::string name_;
  Transport& transport_;
  Executor& executor_;
  const ReplayOptions options_;
  StepEvents events_;                         // instructions, gradients, releases
  std::vector<std::vector<Buffer>> buffers_;  // by instruction, then transfer
  std::int64_t step_ = 0;
  double loss_ = 0;
  std::vector<std::thread> threads_;
};

PlanReplayer::PlanReplayer(FlatProgram program, std::string name, Transport& transport,
                           Executor& executor, const ReplayOptions& options)
    : program_(std::move(program)),
      name_(std::move(name)),
      transport_(transport),
      executor_(executor),
      options_(options),
      events_(program_.event_count + program_.instructions.size()) {
  for (const FlatInstruction& instruction : program_.instructions) {
    buffers_.emplace_back(std::max<std::size_t>(instruction.transfers.size(), 1));
  }
  for (const StreamKind kind : {StreamKind::kSend, StreamKind::kRecv, StreamKind::kCollective}) {
    if (program_.streams[static_cast<std::size_t>(kind)].empty()) continue;
    threads_.emplace_back([this, kind] { run_stream(kind); });
  }
}

PlanReplayer::~PlanReplayer() {
  events_.stop();
  for (std::thread& thread : threads_) thread.join();
  if (events_.failure().ok()) return;
  for (const Stream stream : {Stream::kSend, Stream::kRecv, Stream::kCollective}) {
    // After the abort this only waits until the executor's buffers are let go of.
    [[maybe_unused]] const Status known = transport_.wait(stream, 0, options_.limit);
  }
}

Result<StepReport> PlanReplayer::run_step() {
  const auto begin = Clock::now();
  const Status before = events_.failure();
  if (!before.ok()) return before;
  events_.begin_step();
  const Status begun = executor_.begin_step(step_);
  if (!begun.ok()) fail(fmt::format("begin of step {}", step_), begun);
  if (!begun.ok() || !compute_step() || !finish_streams()) return events_.failure();
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  return StepReport{step_++, loss_, seconds.count()};
}

bool PlanReplayer::compute_step() {
  if (!release(0)) return false;
  std::size_t computed = 0;
  for (const std::size_t index : program_.streams[static_cast<std::size_t>(StreamKind::kCompute)]) {
    const FlatInstruction& instruction = at(index);
    if (!events_.wait(instruction.after)) return false;
    const Status status = compute(instruction);
    if (!status.ok()) {
      fail(instruction.name, status);
      return false;
    }
    events_.set(index);
    if (!release(++computed)) return false;
  }
  return true;
}

Status PlanReplayer::compute(const FlatInstruction& instruction) {
  switch (instruction.id.opcode) {
    case Opcode::kForward:
      return executor_.forward(instruction.id.micro_batch);
    case Opcode::kBackward:
      return executor_.backward(instruction.id.micro_batch, instruction.last, *this);
    case Opcode::kUpdate:
      return executor_.update();
    default:
      return internal_error("not an instruction of the compute stream");
  }
}

bool PlanReplayer::release(std::size_t computed) {
  for (const std::size_t index : program_.released[computed]) {
    const Status status = fetch_buffers(index);
    if (!status.ok()) {
      fail(at(index).name, status);
      return false;
    }
    events_.set(released_event(index));
  }
  return true;
}

Status PlanReplayer::fetch_buffers(std::size_t index) {
  const FlatInstruction& instruction = at(index);
  if (instruction.id.opcode == Opcode::kReport) {
    loss_ = executor_.loss();
    buffers_[index][0] = {&loss_, sizeof loss_, DType::kFp64, false};
    return {};
  }
  const bool gradient = instruction.id.opcode == Opcode::kSendGradient ||
                        instruction.id.opcode == Opcode::kRecvGradient;
  for (std::size_t i = 0; i < instruction.transfers.size(); ++i) {
    const Transfer& transfer = instruction.transfers[i].transfer;
    const int cut = instruction.id.object, micro_batch = instruction.id.micro_batch;
    AGPCS_TRY(buffers_[index][i], gradient ? executor_.gradient(cut, transfer, micro_batch)
                                           : executor_.activation(cut, transfer, micro_batch));
  }
  return {};
}

// Within backward: the bucket's reduction starts as soon as it is its turn, while backward goes on.
void PlanReplayer::bucket_ready(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  const std::size_t index = program_.bucket_instructions[b];
  if (index != FlatProgram::kNoEvent) {
    auto buffer = executor_.bucket(bucket);
    if (!buffer.ok()) return fail(at(index).name, buffer.status());
    buffers_[index][0] = *buffer;
    events_.set(released_event(index));
  }
  events_.set(program_.gradient_events[b]);
}

bool PlanReplayer::finish_streams() {
  for (std::size_t index = 0; index < program_.instructions.size(); ++index) {
    if (!events_.wait(index)) return false;
  }
  return true;
}

void PlanReplayer::run_stream(StreamKind kind) {
  const Stream stream = kind == StreamKind::kSend   ? Stream::kSend
                        : kind == StreamKind::kRecv ? Stream::kRecv
                                                    : Stream::kCollective;
  std::uint64_t step = 0;
  while ((step = events_.wait_for_step(step)) != 0) {
    for (const std::size_t index : program_.streams[static_cast<std::size_t>(kind)]) {
      if (!events_.wait(at(index).after) || !events_.wait(released_event(index))) return;
      const Status status = communicate(index, stream);
      if (!status.ok()) return fail(at(index).name, status);
      events_.set(index);
    }
  }
}

Status PlanReplayer::communicate(std::size_t index, Stream stream) {
  const FlatInstruction& instruction = at(index);
  const bool collective = stream == Stream::kCollective;
  const std::size_t parts = collective ? 1 : instruction.transfers.size();
  Ticket last = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    AGPCS_TRY(last, enqueue(index, part));
  }
  return parts == 0 ? Status() : transport_.wait(stream, last, options_.limit);
}

Result<Ticket> PlanReplayer::enqueue(std::size_t index, std::size_t part) {
  const FlatInstruction& instruction = at(index);
  const Buffer& buffer = buffers_[index][part];
  switch (instruction.id.opcode) {
    case Opcode::kSend:
    case Opcode::kSendGradient:
      return transport_.send(buffer, instruction.transfers[part].transfer.peer,
                             instruction.transfers[part].tag);
    case Opcode::kRecv:
    case Opcode::kRecvGradient:
      return transport_.recv(buffer, instruction.transfers[part].transfer.peer,
                             instruction.transfers[part].tag);
    default:
      if (instruction.flow >= 0) return transport_.all_reduce_flow(buffer, instruction.flow);
      return transport_.all_reduce(buffer, instruction.group, instruction.algorithm);
  }
}

void PlanReplayer::fail(const std::string& what, const Status& cause) {
  const Status status(cause.code(), fmt::format("{}: {}: {}", name_, what, cause.message()));
  if (events_.fail(status)) transport_.abort(status);
}

Status check_fit(const Plan& plan, int rank, const Transport& transport) {
  AGPCS_RETURN_IF_ERROR(verify_plan(plan));
  if (plan.rank_count() != transport.size()) {
    return invalid_input(fmt::format("the plan is for {} ranks, the transport has {}",
                                     plan.rank_count(), transport.size()));
  }
  if (rank != transport.rank()) {
    return invalid_input(
        fmt::format("rank {} cannot use the transport of rank {}", rank, transport.rank()));
  }
  return {};
}

/// The group of the rank's stage and its flows.
Status open_stage(const Plan& plan, int stage, Transport& transport) {
  const PlanStage& opened = plan.stages[static_cast<std::size_t>(stage)];
  AGPCS_RETURN_IF_ERROR(transport.open_group(stage, opened.ranks, hosts_of_ranks(plan)));
  for (std::size_t f = 0; f < plan.flows.size(); ++f) {
    if (plan.flows[f].stage != stage) continue;
    AGPCS_RETURN_IF_ERROR(transport.open_flow(static_cast<int>(f), stage, plan.flows[f]));
  }
  return {};
}

Result<std::unique_ptr<Replayer>> build(const Plan& plan, int rank, Transport& transport,
                                        Executor& executor, const ReplayOptions& options) {
  AGPCS_RETURN_IF_ERROR(check_fit(plan, rank, transport));
  AGPCS_TRY(FlatProgram program, flatten(plan, rank));
  AGPCS_RETURN_IF_ERROR(agree_on_plan(plan, transport, options.limit));
  AGPCS_RETURN_IF_ERROR(open_stage(plan, plan.stage_of_rank(rank), transport));
  AGPCS_RETURN_IF_ERROR(executor.prepare(plan, rank));
  return std::unique_ptr<Replayer>(std::make_unique<PlanReplayer>(
      std::move(program), rank_name(plan, rank), transport, executor, options));
}

}  // namespace

Result<std::unique_ptr<Replayer>> Replayer::create(const Plan& plan, int rank, Transport& transport,
                                                   Executor& executor,
                                                   const ReplayOptions& options) {
  auto replayer = build(plan, rank, transport, executor, options);
  if (replayer.ok()) return replayer;
  const Status cause = replayer.status();
  const Status status(cause.code(), fmt::format("{}: {}", rank_name(plan, rank), cause.message()));
  transport.abort(status);
  return status;
}

}  // namespace agpcs
