// SPDX-License-Identifier: Apache-2.0
// The replayer: one walk over the resolved program. The caller's thread computes, and posts each
// message and collective as soon as it has all that it waits for; the transport completes them. The
// thread waits only where a computation needs one of them, and at the end of the step.
#include "ir/plan/lookup.h"
#include "runtime/replay/finite.h"
#include "runtime/replay/gradient_rounding.h"
#include "runtime/replay/in_order.h"
#include "runtime/replay/plan_agreement.h"
#include "runtime/replay/plan_exchange.h"
#include "runtime/replay/recording_replayer.h"
#include "runtime/replay/resolved_program.h"
#include "runtime/support/operation_times.h"
#include "runtime/support/recording.h"
#include "runtime/support/withdraw.h"

#include <agpcs/replayer.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

std::string rank_name(const Plan& plan, int rank) {
  return fmt::format("rank {} ({})", rank, device_of_rank(plan, rank));
}

constexpr std::array<Stream, 3> kStreams = {Stream::kSend, Stream::kRecv, Stream::kCollective};
constexpr std::array<StreamKind, 3> kKinds = {StreamKind::kSend, StreamKind::kRecv,
                                              StreamKind::kCollective};

class PlanReplayer final : public RecordingReplayer, private GradientListener {
 public:
  PlanReplayer(const Plan& plan, int rank, ResolvedProgram program, GradientRounding rounding,
               Transport& transport, Executor& executor, const ReplayOptions& options,
               int record_after);
  ~PlanReplayer() override;
  PlanReplayer(const PlanReplayer&) = delete;
  PlanReplayer& operator=(const PlanReplayer&) = delete;

  Result<StepReport> run_step() override;
  Result<Evaluation> evaluate() override;
  const StepRecording& recording() const override { return recording_; }
  std::vector<double>& to_report() override { return to_report_; }
  const std::vector<double>& reported() const override { return reported_; }
  const std::vector<InstructionId>& instructions() const override { return ids_; }
  const StepTimes& times() const override { return times_; }

 private:
  // A walk over the program, which leaves some instructions out on all ranks.
  enum class Pass : std::uint8_t {
    kWhole,
    kMore,        // nothing is reduced, updated or reported: another batch of the step follows
    kEvaluation,  // forward passes alone
  };
  // The tickets of a posted message or collective; 0, 0: not posted.
  struct Posted {
    Ticket first = 0, last = 0;
  };
  const ResolvedInstruction& at(std::size_t index) const { return program_.instructions[index]; }
  const std::vector<std::size_t>& stream(StreamKind kind) const {
    return program_.streams[static_cast<std::size_t>(kind)];
  }

  /// Records the next step if all ranks can, and otherwise notes the reason in `recording_`.
  /// Returns false on a failure.
  bool decide_recording();
  Status record();
  bool replay_step();
  bool start_step();
  void begin_pass(Pass pass);
  bool skips(const ResolvedInstruction& instruction) const;
  bool compute_step();
  bool await(const ResolvedInstruction& instruction);
  Status compute(const ResolvedInstruction& instruction);
  Status check_loss() const;
  Status check_gradient(int bucket);
  /// Takes back all sums that travelled in a wire type, each as soon as it is there.
  bool take_sums();
  Status take_sum(int bucket);
  void bucket_ready(int bucket) override;
  /// Posts, in order, the instructions that have all that they wait for.
  void post();
  bool may_start(const ResolvedInstruction& instruction) const;
  void post(std::size_t index);
  Result<Ticket> post(std::size_t index, std::size_t part);
  Result<Buffer> buffer_of(const ResolvedInstruction& instruction, std::size_t part);
  Buffer report_buffer();
  bool finish_step();
  /// Makes later computations come after the instruction.
  bool order_after(Stream stream, std::size_t index);
  bool wait(Stream stream, std::size_t index);
  bool fail_at(Stream stream, std::size_t index, const Status& status);
  void take_reported();
  void note_times();
  OperationTime time_of(Stream stream, std::size_t index, Ticket ticket) const;
  void fail(const std::string& what, const Status& cause);

  const ResolvedProgram program_;
  const std::string name_;
  const int world_;
  const std::int64_t statistics_every_;
  const std::vector<PlanBucket> buckets_;  // buckets of all stages
  std::vector<ElementRange> owned_;        // by bucket: the elements that this rank owns
  GradientRounding rounding_;
  Transport& transport_;
  Executor& executor_;
  const ReplayOptions options_;
  const int record_after_;  // 0: never
  std::vector<InstructionId> ids_;
  StepTimes times_;
  std::vector<double> to_report_, reported_;
  std::vector<double> report_;  // what travels: the loss, then the words

  // State of the running step.
  std::int64_t step_;
  Pass pass_ = Pass::kWhole;
  std::size_t computed_ = 0;           // computations that are done
  std::array<InOrder, 3> order_;       // by Stream: the order of its instructions
  std::array<Ticket, 3> newest_ = {};  // by Stream: newest ticket
  std::vector<Posted> posted_;         // by instruction
  std::vector<char> ready_;            // by bucket: it has its last gradient
  Status failure_;

  StepRecording recording_;
  std::unique_ptr<StepGraph> graph_;                // null: instructions are launched one by one
  RecordingExecutor* recorded_executor_ = nullptr;  // the executor, if `graph_` is set
  bool records_ = false;                            // this step is being recorded
  std::size_t report_at_ = kNoInstruction;
};

PlanReplayer::PlanReplayer(const Plan& plan, int rank, ResolvedProgram program,
                           GradientRounding rounding, Transport& transport, Executor& executor,
                           const ReplayOptions& options, int record_after)
    : program_(std::move(program)),
      name_(rank_name(plan, rank)),
      world_(world_group(plan)),
      statistics_every_(plan.training.statistics_every),
      buckets_(plan.buckets),
      rounding_(std::move(rounding)),
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
  const int stage = plan.stage_of_rank(rank);
  for (const PlanBucket& bucket : plan.buckets) {
    owned_.push_back(bucket.is_of(stage) ? owned_elements(plan, bucket, rank) : ElementRange());
  }
  for (const ResolvedInstruction& instruction : program_.instructions) {
    if (instruction.id.opcode == Opcode::kReport) report_at_ = ids_.size();
    ids_.push_back(instruction.id);
  }
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
  return StepReport{step_++, report_[0], seconds};
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
    case Opcode::kSendGradient:
    case Opcode::kRecvGradient:
      return pass_ == Pass::kEvaluation;
    default:
      return true;
  }
}

void PlanReplayer::begin_pass(Pass pass) {
  pass_ = pass;
  computed_ = 0;
  for (InOrder& order : order_) order.reset();
  std::fill(posted_.begin(), posted_.end(), Posted{});
  std::fill(ready_.begin(), ready_.end(), char{0});
}

bool PlanReplayer::compute_step() {
  InstructionTime* times = times_.row(step_);
  post();
  for (const std::size_t index : stream(StreamKind::kCompute)) {
    const ResolvedInstruction& instruction = at(index);
    if (!failure_.ok()) return false;
    if (!skips(instruction)) {
      if (!await(instruction)) return false;
      times[index].begin = steady_nanoseconds();
      const Status status = compute(instruction);
      times[index].end = steady_nanoseconds();
      if (!status.ok()) fail(instruction.name, status);
      if (!failure_.ok()) return false;
    }
    ++computed_;
    post();
  }
  return failure_.ok();
}

bool PlanReplayer::await(const ResolvedInstruction& instruction) {
  if (instruction.id.opcode == Opcode::kUpdate && !take_sums()) return false;
  for (const Stream stream : kStreams) {
    const std::size_t awaited = instruction.awaits[static_cast<std::size_t>(stream)];
    if (awaited != kNoInstruction && !order_after(stream, awaited)) return false;
  }
  return true;
}

Status PlanReplayer::compute(const ResolvedInstruction& instruction) {
  switch (instruction.id.opcode) {
    case Opcode::kForward:
      AGPCS_RETURN_IF_ERROR(executor_.forward(instruction.id.micro_batch));
      return check_loss();
    case Opcode::kBackward:
      return executor_.backward(instruction.id.micro_batch,
                                instruction.last && pass_ == Pass::kWhole, *this);
    case Opcode::kUpdate:
      return executor_.update();
    default:
      return internal_error("not an instruction of the compute stream");
  }
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
// origin unknown.
Status PlanReplayer::check_gradient(int bucket) {
  if (!options_.check_finite) return {};
  AGPCS_TRY(const Buffer buffer, executor_.bucket(bucket));
  return agpcs::check_gradient(buckets_[static_cast<std::size_t>(bucket)], buffer, step_);
}

// Takes sums back while later buckets are on their way.
bool PlanReplayer::take_sums() {
  for (const std::size_t index : stream(StreamKind::kCollective)) {
    const ResolvedInstruction& instruction = at(index);
    if (!sums_gradients(instruction.id.opcode)) continue;
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

// Posts the bucket's reduction within a backward pass, as soon as it is its turn, while the pass
// goes on.
void PlanReplayer::bucket_ready(int bucket) {
  Status status = check_gradient(bucket);
  if (status.ok()) status = rounding_.round(bucket, executor_);
  if (!status.ok()) return fail(at(stream(StreamKind::kCompute)[computed_]).name, status);
  ready_[static_cast<std::size_t>(bucket)] = 1;
  post();
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
  if (!sums_gradients(instruction.id.opcode) || skips(instruction)) return true;
  return ready_[static_cast<std::size_t>(instruction.id.object)] != 0;
}

void PlanReplayer::post(std::size_t index) {
  const ResolvedInstruction& instruction = at(index);
  if (records_ && index == report_at_) return;  // the report goes through the host's memory
  const StreamKind kind = stream_of(instruction.id.opcode);
  Ticket& newest = newest_[static_cast<std::size_t>(transport_stream(kind))];
  const std::size_t parts = skips(instruction)                ? 0
                            : kind == StreamKind::kCollective ? 1
                                                              : instruction.transfers.size();
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
    case Opcode::kReport:
      return report_buffer();
    case Opcode::kAllGather:
      return executor_.values(object);
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

/// Opens the group of the rank's stage, its flows, and the groups of the buckets that the stage
/// shares. All ranks open them in the order of their numbers.
Status open_stage(const Plan& plan, int stage, Transport& transport) {
  const PlanStage& opened = plan.stages[static_cast<std::size_t>(stage)];
  AGPCS_RETURN_IF_ERROR(transport.open_group(stage, opened.ranks, hosts_of_ranks(plan)));
  for (std::size_t f = 0; f < plan.flows.size(); ++f) {
    if (plan.flows[f].stage != stage) continue;
    AGPCS_RETURN_IF_ERROR(transport.open_flow(static_cast<int>(f), stage, plan.flows[f]));
  }
  int opened_last = world_group(plan);
  for (const PlanBucket& bucket : plan.buckets) {
    const int group = group_of(plan, bucket);
    if (group <= opened_last) continue;
    opened_last = group;  // new sets of stages have ascending numbers
    if (!bucket.is_of(stage)) continue;
    AGPCS_RETURN_IF_ERROR(
        transport.open_group(group, ranks_of(plan, bucket), hosts_of_ranks(plan)));
  }
  return {};
}

Result<std::unique_ptr<RecordingReplayer>> build(const Plan& plan, int rank, Transport& transport,
                                                 Executor& executor, const ReplayOptions& options,
                                                 int record_after) {
  AGPCS_RETURN_IF_ERROR(check_fit(plan, rank, transport));
  AGPCS_TRY(ResolvedProgram program, resolve(plan, rank));
  AGPCS_RETURN_IF_ERROR(agree_on_plan(plan, transport, options.limit));
  AGPCS_RETURN_IF_ERROR(open_stage(plan, plan.stage_of_rank(rank), transport));
  if (!options.prepared) AGPCS_RETURN_IF_ERROR(executor.prepare(plan, rank));
  AGPCS_TRY(GradientRounding rounding, GradientRounding::make(plan, program, executor));
  return std::unique_ptr<RecordingReplayer>(
      std::make_unique<PlanReplayer>(plan, rank, std::move(program), std::move(rounding), transport,
                                     executor, options, record_after));
}

}  // namespace

Result<std::unique_ptr<Replayer>> Replayer::create(const Plan& plan, int rank, Transport& transport,
                                                   Executor& executor,
                                                   const ReplayOptions& options) {
  AGPCS_TRY(auto replayer, RecordingReplayer::create(plan, rank, transport, executor, options,
                                                     /*record_after=*/0));
  return std::unique_ptr<Replayer>(std::move(replayer));
}

Result<std::unique_ptr<RecordingReplayer>> RecordingReplayer::create(const Plan& plan, int rank,
                                                                     Transport& transport,
                                                                     Executor& executor,
                                                                     const ReplayOptions& options,
                                                                     int record_after) {
  auto replayer = build(plan, rank, transport, executor, options, record_after);
  if (replayer.ok()) return replayer;
  const Status cause = replayer.status();
  const Status status(cause.code(), fmt::format("{}: {}", rank_name(plan, rank), cause.message()));
  transport.abort(status);
  return status;
}

}  // namespace agpcs
