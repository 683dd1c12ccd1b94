// SPDX-License-Identifier: Apache-2.0
// Passes over the program, and what is computed in them.
#include "runtime/replay/plan_replayer.h"

#include "ir/plan/body/body.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/lookup.h"
#include "runtime/replay/finite.h"
#include "runtime/replay/plan_exchange.h"
#include "runtime/support/processor_time.h"
#include "runtime/support/withdraw.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace agpcs {

std::string rank_name(const Plan& plan, int rank) {
  return fmt::format("rank {} ({})", rank, device_of_rank(plan, rank));
}

namespace {

/// Returns whether no earlier replica has what `rank` holds of a bucket. Of unlike teams, the first
/// has all of it.
bool is_first_of_its_number(const Plan& plan, const PlanBucket& bucket, int rank) {
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(plan.stage_of_rank(rank))];
  if (stage.has_unlike_teams()) return replica_of(stage, rank) == 0;
  return summing_group(plan, bucket, rank).ranks.front() == rank;
}

}  // namespace

PlanReplayer::PlanReplayer(const Plan& plan, int rank, ResolvedProgram program,
                           GradientRounding rounding, SliceSums slices, Transport& transport,
                           Executor& executor, const ReplayOptions& options, int record_after)
    : program_(std::move(program)),
      name_(rank_name(plan, rank)),
      world_(world_group(plan)),
      statistics_every_(plan.training.statistics_every),
      max_norm_(plan.training.optimizer.max_norm),
      rounding_(std::move(rounding)),
      slices_(std::move(slices)),
      transport_(transport),
      executor_(executor),
      options_(options),
      record_after_(record_after),
      times_(program_.instructions.size(), std::max<std::size_t>(options.kept_steps, 1)),
      to_report_(static_cast<std::size_t>(report_words(plan.rank_count())), 0.0),
      reported_(to_report_),
      report_(to_report_.size() + 1, 0.0),
      step_(options.first_step),
      posted_(program_.instructions.size()),
      ready_(plan.buckets.size(), 0) {
  for (const PlanBucket& bucket : plan.buckets) {
    buckets_.push_back(held_by(plan, bucket, rank));
    owned_.emplace_back();
    if (!holds(plan, rank, bucket)) continue;
    owned_.back() = bucket.is_sharded() ? owned_elements(plan, bucket, rank)
                                        : ElementRange{0, buckets_.back().elements()};
    const bool counts = bucket.is_sharded() || is_first_of_its_number(plan, bucket, rank);
    if (counts) normed_.push_back(static_cast<int>(owned_.size()) - 1);
  }
  is_reduced_.resize(plan.buckets.size(), 0);
  for (const ResolvedInstruction& instruction : program_.instructions) {
    if (sums_gradients(instruction.id.opcode)) {
      is_reduced_[static_cast<std::size_t>(instruction.id.object)] = 1;
    }
    if (instruction.id.opcode == Opcode::kReport) report_at_ = ids_.size();
    if (instruction.id.opcode == Opcode::kNorm) norm_at_ = ids_.size();
    ids_.push_back(instruction.id);
  }
}

Status PlanReplayer::connect_parameters() {
  return program_.gathers.empty() ? Status() : executor_.gather_with(*this);
}

PlanReplayer::~PlanReplayer() {
  if (failure_.ok()) return;
  for (const Stream stream : kStreams) {
    // After the abort, this only waits until no operation touches the executor's buffers.
    [[maybe_unused]] const Status known = transport_.wait(stream, 0, options_.limit);
  }
}

Result<StepReport> PlanReplayer::run_step() {
  if (!failure_.ok()) return failure_;
  const bool due = record_after_ > 0 && step_ == options_.first_step + record_after_;
  if (due && !decide_recording()) return failure_;
  const std::int64_t begin = steady_nanoseconds();
  const bool done = graph_ ? replay_step() : start_step() && finish_step();
  if (!done) return failure_;
  note_times();
  take_reported();
  const double seconds = static_cast<double>(steady_nanoseconds() - begin) * 1e-9;
  StepReport report{step_++, report_[0], seconds};
  if (max_norm_ > 0) report.gradient_norm = std::sqrt(squares_);
  return report;
}

Result<Evaluation> PlanReplayer::evaluate() {
  if (!failure_.ok()) return failure_;
  for (std::int64_t batch = 0;; ++batch) {
    const auto begun = executor_.begin_evaluation(batch);
    if (!begun.ok()) fail(fmt::format("evaluation before step {}", step_), begun.status());
    if (!failure_.ok()) return failure_;
    if (!*begun) break;
    begin_pass(Pass::kEvaluation);
    if (!compute_step() || !finish_step()) return failure_;
  }
  const Evaluation mine = executor_.evaluation();
  std::array<double, 4> sums{mine.loss, mine.correct, mine.counted, mine.samples};
  const Buffer buffer{sums.data(), sizeof sums, DType::kFp64, false};
  const auto posted = transport_.all_reduce(buffer, world_, AllReduce::kTree);
  Status status = posted.status();
  if (posted.ok()) {
    newest_[static_cast<std::size_t>(Stream::kCollective)] = *posted;
    status = transport_.wait(Stream::kCollective, *posted, options_.limit);
  }
  if (status.ok()) return Evaluation{sums[0], sums[1], sums[2], sums[3]};
  fail(fmt::format("evaluation before step {}", step_), status);
  return withdraw(transport_, failure_, options_.limit);
}

// All ranks replay a step or none does: NCCL needs an operation to be part of a graph on all of its
// ranks, and the report comes after a replay.
bool PlanReplayer::decide_recording() {
  std::string obstacle = recording_obstacle(transport_);
  if (options_.batches > 1) obstacle = "a step has several batches";
  if (max_norm_ > 0) obstacle = "gradients are clipped by a norm that the host computes";
  if (!program_.gathers.empty()) obstacle = "passes gather parameters to memory that they free";
  if (obstacle.empty()) obstacle = recording_obstacle(executor_);
  const auto named = [&](const std::string& text) {
    const bool plain = text.empty() || text.rfind(name_, 0) == 0;
    return plain ? text : fmt::format("{}: {}", name_, text);
  };
  auto said = first_to_say(named(obstacle), world_, transport_, options_.limit);
  if (said.ok() && said->empty()) {
    const Status recorded = record();
    said = first_to_say(named(recorded.message()), world_, transport_, options_.limit);
  }
  if (!said.ok()) fail(fmt::format("recording of step {}", step_), said.status());
  if (!failure_.ok()) return false;
  if (!said->empty()) graph_ = nullptr;
  recording_ = {true, said->empty(), *said};
  return true;
}

// Needs: nothing is in the way, so transport and executor can record.
Status PlanReplayer::record() {
  auto& executor = dynamic_cast<RecordingExecutor&>(executor_);
  auto& transport = dynamic_cast<RecordingTransport&>(transport_);
  Status status = executor.begin_recording();
  if (status.ok()) status = transport.begin_recording();
  if (status.ok()) {
    records_ = true;
    start_step();
    records_ = false;
    auto graph = transport.end_recording(options_.limit);
    status = std::exchange(failure_, Status());
    if (status.ok()) status = graph.status();
    if (status.ok()) graph_ = std::move(*graph);
    recorded_executor_ = &executor;
  }
  const Status ended = executor.end_recording();
  return status.ok() ? ended : status;
}

bool PlanReplayer::replay_step() {
  Status status = recorded_executor_->load_step(step_);
  if (status.ok()) status = graph_->launch();
  if (status.ok()) status = graph_->wait(options_.limit);
  if (status.ok()) status = check_loss();
  if (!status.ok()) {
    fail(fmt::format("step {}, replayed as a CUDA graph", step_), status);
    return false;
  }
  if (report_at_ == kNoInstruction) return true;
  post(report_at_);
  return failure_.ok() && wait(Stream::kCollective, report_at_);
}

bool PlanReplayer::start_step() {
  for (int batch = 0; batch < options_.batches; ++batch) {
    const bool last = batch + 1 == options_.batches;
    begin_pass(last ? Pass::kWhole : Pass::kMore);
    const Status begun = batch == 0 ? executor_.begin_step(step_) : executor_.next_batch();
    if (!begun.ok()) fail(fmt::format("begin of step {}", step_), begun);
    if (!begun.ok() || !compute_step() || (!last && !finish_step())) return false;
  }
  return true;
}

// No rank waits for what all ranks leave out, so a pass that leaves something out cannot hang where
// the whole program does not.
bool PlanReplayer::skips(const ResolvedInstruction& instruction) const {
  if (pass_ == Pass::kWhole) return false;
  switch (instruction.id.opcode) {
    case Opcode::kForward:
    case Opcode::kSend:
    case Opcode::kRecv:
      return false;
    case Opcode::kBackward:
    case Opcode::kBackwardInput:
    case Opcode::kBackwardWeight:
    case Opcode::kSendGradient:
    case Opcode::kRecvGradient:
      return pass_ == Pass::kEvaluation;
    case Opcode::kGatherForward:
      return false;
    case Opcode::kGatherBackward:
      return pass_ == Pass::kEvaluation;
    case Opcode::kReduceScatter:
      return pass_ == Pass::kEvaluation || instruction.id.micro_batch < 0;
    default:
      return true;
  }
}

void PlanReplayer::begin_pass(Pass pass) {
  pass_ = pass;
  computed_ = 0;
  told_sent_ = 0;
  squares_ = 0;
  squared_ = stream(StreamKind::kCompute).empty();  // an idle rank has no gradients
  for (InOrder& order : order_) order.reset();
  std::fill(posted_.begin(), posted_.end(), Posted{});
  std::fill(ready_.begin(), ready_.end(), 0);
  needed_ = 0;
  skip_gathers();
}

bool PlanReplayer::compute_step() {
  InstructionTime* times = times_.row(step_);
  post();
  // Read once a computation, for it costs more than the computation's wall times: what the thread
  // does between two computations, which is little, counts to the second one.
  std::int64_t processor = thread_processor_nanoseconds();
  for (const std::size_t index : stream(StreamKind::kCompute)) {
    const ResolvedInstruction& instruction = at(index);
    if (!failure_.ok()) return false;
    if (!skips(instruction)) {
      if (!await(instruction)) return false;
      paused_ = 0;
      times[index].begin = steady_nanoseconds();
      const Status status = compute(instruction);
      times[index].end = steady_nanoseconds() - paused_;
      const std::int64_t had = std::exchange(processor, thread_processor_nanoseconds());
      times[index].processor = processor - had;
      if (!status.ok()) fail(instruction.name, status);
      if (!failure_.ok()) return false;
    }
    ++computed_;
    post();
  }
  return failure_.ok() && keep_scattered();
}

bool PlanReplayer::await(const ResolvedInstruction& instruction) {
  const bool updates = instruction.id.opcode == Opcode::kUpdate;
  if (updates && !(keep_scattered() && take_slices() && take_sums() && clip())) return false;
  for (const Stream stream : kStreams) {
    const std::size_t awaited = instruction.awaits[static_cast<std::size_t>(stream)];
    if (awaited == kNoInstruction) continue;
    if (!order_after(stream, awaited)) return false;
    if (stream == Stream::kSend) tell_sent(awaited);
  }
  return true;
}

void PlanReplayer::tell_sent(std::size_t last) {
  const std::vector<std::size_t>& sends = stream(StreamKind::kSend);
  for (; told_sent_ < sends.size() && sends[told_sent_] <= last; ++told_sent_) {
    executor_.sent(at(sends[told_sent_]).id);
  }
}

Status PlanReplayer::compute(const ResolvedInstruction& instruction) {
  const StagePass pass{instruction.stage, instruction.id.micro_batch};
  const bool last = instruction.last && pass_ == Pass::kWhole;
  switch (instruction.id.opcode) {
    case Opcode::kForward:
      AGPCS_RETURN_IF_ERROR(executor_.forward(pass));
      AGPCS_RETURN_IF_ERROR(need_rest(instruction.id));
      return check_loss();
    case Opcode::kBackward:
      AGPCS_RETURN_IF_ERROR(executor_.backward(pass, last, *this));
      return need_rest(instruction.id);
    case Opcode::kBackwardInput:
      return executor_.backward_input(pass);
    case Opcode::kBackwardWeight:
      return executor_.backward_weight(pass, last, *this);
    case Opcode::kUpdate:
      return executor_.update();
    default:
      return internal_error("not an instruction of the compute stream");
  }
}

bool PlanReplayer::clip() {
  if (max_norm_ == 0) return true;
  const Status added = add_squares();
  if (!added.ok()) fail(at(norm_at_).name, added);
  squared_ = true;
  post();
  if (!failure_.ok() || !wait(Stream::kCollective, norm_at_)) return false;
  // As PyTorch's clip_grad_norm_ has it.
  const double factor = max_norm_ / (std::sqrt(squares_) + 1e-6);
  const Status scaled = factor >= 1 ? Status() : executor_.scale(factor);
  if (!scaled.ok()) fail(at(norm_at_).name, scaled);
  return failure_.ok();
}

Status PlanReplayer::add_squares() {
  std::size_t last = kNoInstruction;  // the stream is in order, so it stands for all sums
  for (const std::size_t index : stream(StreamKind::kCollective)) {
    if (index == norm_at_) break;
    last = index;
  }
  if (last != kNoInstruction && !wait(Stream::kCollective, last)) return failure_;
  for (const int bucket : normed_) {
    AGPCS_TRY(const double squares, executor_.squares(bucket));
    squares_ += squares;
  }
  return {};
}

// If a device computes, the host waits for it here and posts nothing meanwhile. This cannot make a
// plan hang: verify_plan proves each plan for ranks that issue nothing until a computation is over.
Status PlanReplayer::check_loss() const {
  if (!options_.check_finite || records_ || pass_ == Pass::kEvaluation) return {};
  if (std::isfinite(executor_.loss())) return {};
  return invalid_input(fmt::format("the loss of step {} is not finite: {}\n  {}", step_,
                                   executor_.loss(), kNotFiniteHint));
}

// Checks a bucket before it is reduced: afterwards the value would be on all ranks, and its
// origin unknown. Of a bucket that nobody reduces, the executor need not have the buffer.
Status PlanReplayer::check_gradient(int bucket) {
  if (!options_.check_finite) return {};
  const PlanBucket& members = buckets_[static_cast<std::size_t>(bucket)];
  for (std::size_t i = 0; !is_reduced_[static_cast<std::size_t>(bucket)]; ++i) {
    if (i == members.members.size()) return {};
    const Result<Buffer> gradient = executor_.member_gradient(bucket, i);
    if (!gradient.ok() && gradient.status().code() == StatusCode::kUnavailable) break;
    AGPCS_RETURN_IF_ERROR(gradient.status());
    AGPCS_RETURN_IF_ERROR(agpcs::check_gradient(members, i, *gradient, step_));
  }
  AGPCS_TRY(const Buffer buffer, executor_.bucket(bucket));
  return agpcs::check_gradient(members, buffer, step_);
}

bool PlanReplayer::take_slices() {
  for (const std::size_t index : stream(StreamKind::kCollective)) {
    if (at(index).slices.empty()) continue;
    if (!order_after(Stream::kCollective, index)) return false;
    slices_.take(at(index), index);
  }
  return true;
}

// Takes sums back while later buckets are on their way.
bool PlanReplayer::take_sums() {
  for (const std::size_t index : stream(StreamKind::kCollective)) {
    const ResolvedInstruction& instruction = at(index);
    if (!sums_gradients(instruction.id.opcode) || instruction.id.micro_batch >= 0) continue;
    if (rounding_.rounded(instruction.id.object) == nullptr) continue;
    if (!order_after(Stream::kCollective, index)) return false;
    const Status taken = take_sum(instruction.id.object);
    if (taken.ok()) continue;
    fail(instruction.name, taken);
    return false;
  }
  return true;
}

// Sums may overflow the wire type even though no gradient did. They do so on all ranks; the check
// finds it before they spoil a parameter.
Status PlanReplayer::take_sum(int bucket) {
  AGPCS_RETURN_IF_ERROR(rounding_.widen(bucket, executor_));
  if (!options_.check_finite) return {};
  AGPCS_TRY(const Buffer buffer, executor_.bucket(bucket));
  return check_sum(buckets_[static_cast<std::size_t>(bucket)], buffer,
                   owned_[static_cast<std::size_t>(bucket)], rounding_.rounded(bucket)->type,
                   step_);
}

}  // namespace agpcs
