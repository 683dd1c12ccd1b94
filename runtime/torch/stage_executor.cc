// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/stage_executor.h"

#include "ir/strategy/memory.h"
#include "ir/strategy/segments.h"
#include "runtime/torch/clock.h"
#include "runtime/torch/cuts.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/data/feed.h"
#include "runtime/torch/evaluation.h"
#include "runtime/torch/graph.h"
#include "runtime/torch/parameters/parameter_uses.h"
#include "runtime/torch/parameters/parameters.h"
#include "runtime/torch/probe.h"
#include "runtime/torch/progress.h"
#include "runtime/torch/put_off.h"
#include "runtime/torch/segments.h"
#include "runtime/torch/stage.h"
#include "runtime/torch/team/team_stage.h"
#include "runtime/torch/threads.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

using Values = SegmentPasses::Values;

Result<Buffer> flat_buffer(int bucket, const at::Tensor& flat, DType type = DType::kFp32) {
  if (flat.defined()) return Buffer{flat.data_ptr(), flat.nbytes(), type, flat.is_cuda()};
  return internal_error(fmt::format("bucket {} is not of this stage", bucket));
}

class StageExecutor final : public OneStageExecutor {
 public:
  StageExecutor(const Graph& graph, const TorchOptions& options, int stage)
      : graph_(graph), options_(options), stage_(stage) {}

  Status prepare(const Plan& plan, int rank) override;
  Status begin_step(std::int64_t step) override;
  Status next_batch() override;
  Result<bool> begin_evaluation(std::int64_t batch) override;
  Evaluation evaluation() const override {
    return evaluation_ ? evaluation_->sums() : Evaluation{};
  }
  Status forward(const StagePass& pass) override;
  Status backward(const StagePass& pass, bool last, GradientListener& listener) override;
  Status backward_input(const StagePass& pass) override;
  Status backward_weight(const StagePass& pass, bool last, GradientListener& listener) override;
  Status update() override;

  Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch) override {
    return guarded("a cut's activation",
                   [&] { return cuts_.activation(cut, transfer, micro_batch); });
  }
  Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch) override {
    return guarded("a cut's gradient", [&] { return cuts_.gradient(cut, transfer, micro_batch); });
  }
  void sent(const InstructionId& send) override { cuts_.sent(send); }
  CutBuffers& cuts() override { return cuts_; }
  Result<Buffer> bucket(int bucket) override {
    return flat_buffer(bucket, parameters_.gradient(bucket));
  }
  Result<Buffer> member_gradient(int bucket, std::size_t member) override {
    const at::Tensor gradient = parameters_.member_gradient(bucket, member);
    if (!gradient.defined()) return Buffer{};
    return Buffer{gradient.data_ptr(), gradient.nbytes(), DType::kFp32, gradient.is_cuda()};
  }
  Result<Buffer> values(int bucket) override {
    return flat_buffer(bucket, parameters_.value(bucket));
  }
  Status fill_bucket(int bucket) override {
    return guarded("filling a bucket", [&] { return parameters_.fill(bucket); });
  }
  Status keep_part(int bucket) override {
    return guarded("keeping a bucket's part", [&] { return parameters_.keep_part(bucket); });
  }
  Status gather_with(ParameterSource& source) override {
    uses_.connect(source);
    return {};
  }
  Status exchange_with(const TeamExchanges& over) override {
    if (!team_) return Executor::exchange_with(over);
    team_->exchange_with(over);
    return {};
  }
  Result<Buffer> gather(int bucket) override {
    return guarded("gathering a bucket", [&]() -> Result<Buffer> {
      AGPCS_TRY(const at::Tensor whole, parameters_.gather(bucket));
      return flat_buffer(bucket, whole);
    });
  }
  Result<double> squares(int bucket) override;
  Status scale(double factor) override;
  Result<Buffer> round_bucket(int bucket, DType type) override;
  Status widen_bucket(int bucket) override;
  double loss() const override;
  InstructionTime time_of(const InstructionId& id) override;
  double probe(double seconds) override { return probe_.run(seconds, device_); }

  std::string recording_obstacle() const override;
  Status begin_recording() override;
  Status end_recording() override;
  Status load_step(std::int64_t step) override;

  std::vector<StateItem> state() const override { return parameters_.state().items(); }
  Status read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                    float* out) const override {
    return guarded("reading state",
                   [&] { return parameters_.state().read(item, first, count, out); });
  }
  Status write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                     const float* values) override {
    return guarded("writing state",
                   [&] { return parameters_.state().write(item, first, count, values); });
  }

  Result<std::vector<float>> value(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::string notes() const override { return notes_; }
  Status observe(OperatorObserver* observer) override;
  double busy_seconds(bool ahead) override {
    if (!busy_) busy_ = make_busy_clock(device_);
    return busy_->read(ahead);
  }

 private:
  const StageCode& code_of(int micro_batch) const {
    const std::int64_t samples = feed_.share_of(micro_batch).samples;
    return samples == feed_.larger().samples ? code_ : smaller_code_;
  }

  // Turns foreign exceptions into errors.
  template <typename F>
  static auto guarded(std::string_view what, F&& f) -> decltype(f()) {
    try {
      return f();
    } catch (const std::exception& error) {
      return failure_of(what, error);
    }
  }

  // Returns how a pass ended: a failed exchange says more than the exception that it ended with.
  Status ended(Status pass) const {
    return pass.ok() || !team_ || team_->failure().ok() ? pass : team_->failure();
  }

  Status prepare_stage(const Plan& plan, int rank);
  Status prepare_code(const std::vector<OpId>& ops);
  Status prepare_team(const std::vector<OpId>& ops);
  Result<StageCode> compile(const std::vector<OpId>& ops, std::int64_t samples);
  Status choose_device();
  void note_precision();
  Status allocate_weights();
  Status check_inputs() const;
  /// Returns the tensors that the stage reads and does not make, except constants.
  const std::vector<TensorId>& inputs() const { return team_ ? team_->inputs() : code_.inputs(); }
  void compute(int micro_batch, Values& values);
  void stop_clock(Opcode pass);
  void end_team_step(GradientListener& listener);
  StageCode::Run run_of(int micro_batch);
  /// Returns the gradients that begin a backward pass: of the loss, and of what the stage has sent.
  Values first_gradients(int micro_batch) const;
  Status evaluate(int micro_batch);
  Optimizer optimizer_at(std::int64_t step) const;
  void tell_samples_before(std::int64_t step, int batch);
  std::size_t slot(Opcode computation, int micro_batch) const {
    const std::size_t kind = computation == Opcode::kUpdate ? 3
                             : goes_back(computation)       ? 1
                             : makes_gradients(computation) ? 2
                                                            : 0;
    return static_cast<std::size_t>(micro_batch) + kind * passes_.size();
  }

  const Graph& graph_;
  const TorchOptions& options_;
  const int stage_;
  Plan plan_;
  int rank_ = 0;
  StageFeed feed_;
  bool has_loss_ = false;
  at::Device device_ = at::kCPU;
  std::string notes_;
  // For the samples of this rank's share of larger and, if it differs, of smaller micro-batches.
  StageCode code_, smaller_code_;
  std::unique_ptr<TeamStage> team_;  // in place of the code; nullptr: this rank computes alone
  StageParameters parameters_;
  ParameterUses uses_;
  CutBuffers cuts_;
  std::unique_ptr<StageEvaluation> evaluation_;  // nullptr: there are no samples for it
  bool evaluates_ = false;                       // what runs is an evaluation, not a step
  std::vector<TensorId> weights_;
  std::unique_ptr<PassClock> clock_;     // nullptr: there is no observer
  std::unique_ptr<BusyClock> busy_;      // nullptr until it is asked
  std::vector<SegmentPasses> passes_;    // by micro-batch
  std::vector<PutOffProducts> put_off_;  // likewise; empty: backward passes are not parted
  std::int64_t step_ = 0;
  int batch_ = 0;  // of the step
  at::Tensor samples_before_;  // that number on a GPU that draws itself; else undefined
  std::unique_ptr<StepLoss> loss_;
  DeviceProbe probe_;
  std::unique_ptr<ComputeTimes> times_;  // nullptr: calls end with their computations
  OpId asked_device_ = kNone;            // an operator that asks the device for values
  bool recording_ = false;
  std::unique_ptr<GraphMemory> graph_memory_;
};

Status StageExecutor::prepare(const Plan& plan, int rank) {
  return guarded("preparing the LibTorch executor", [&] { return prepare_stage(plan, rank); });
}

Status StageExecutor::prepare_stage(const Plan& plan, int rank) {
  plan_ = plan;
  rank_ = rank;
  feed_.find_shares(graph_, plan_, stage_, rank, options_);
  AGPCS_RETURN_IF_ERROR(choose_device());
  AGPCS_RETURN_IF_ERROR(use_threads(options_.threads));
  note_precision();
  AGPCS_TRY(auto stages, resolve_stages(plan_, graph_));
  const std::vector<OpId>& ops = stages[static_cast<std::size_t>(stage_)];
  AGPCS_RETURN_IF_ERROR(cuts_.prepare(graph_, plan_, stage_, rank, device_));
  if (graph_.loss != kNone) {
    has_loss_ = std::binary_search(ops.begin(), ops.end(), graph_.tensor(graph_.loss).producer);
  }
  const PlanStage& stage = plan_.stages[static_cast<std::size_t>(stage_)];
  AGPCS_RETURN_IF_ERROR(stage.has_teams() ? prepare_team(ops) : prepare_code(ops));
  AGPCS_RETURN_IF_ERROR(feed_.find_inputs(ops, inputs(), device_));
  AGPCS_RETURN_IF_ERROR(check_inputs());
  AGPCS_RETURN_IF_ERROR(allocate_weights());
  uses_.find(graph_, plan_, stage_, ops, segment_ends(stage, ops.size()), parameters_);
  if (options_.evaluation) {
    AGPCS_TRY(evaluation_,
              StageEvaluation::make(graph_, ops, cuts_.outgoing(), *options_.evaluation,
                                    plan_.training.batch, device_));
  }
  passes_.resize(static_cast<std::size_t>(plan_.micro_batches));
  loss_ = make_step_loss(device_);
  if (draws_itself(device_)) {
    samples_before_ = at::zeros({}, at::TensorOptions().dtype(at::kLong).device(device_));
  }
  if (plan_.parts_backward()) put_off_.resize(passes_.size());
  times_ = make_compute_times(device_, 3 * passes_.size() + 1);
  return {};
}

Status StageExecutor::prepare_code(const std::vector<OpId>& ops) {
  AGPCS_TRY(code_, compile(ops, feed_.larger().samples));
  if (feed_.smaller().samples != feed_.larger().samples) {
    AGPCS_TRY(smaller_code_, compile(ops, feed_.smaller().samples));
  }
  return {};
}

Status StageExecutor::prepare_team(const std::vector<OpId>& ops) {
  AGPCS_TRY(team_, TeamStage::make(graph_, plan_, rank_, ops, device_));
  for (const StageFeed::Share* share : {&feed_.larger(), &feed_.smaller()}) {
    AGPCS_RETURN_IF_ERROR(team_->prepare(share->samples));
  }
  return {};
}

Result<StageCode> StageExecutor::compile(const std::vector<OpId>& ops, std::int64_t samples) {
  std::vector<TensorId> keep = cuts_.outgoing();
  if (has_loss_) keep.push_back(graph_.loss);
  const PlanStage& stage = plan_.stages[static_cast<std::size_t>(stage_)];
  return StageCode::compile(graph_, ops, samples, keep, device_, segment_ends(stage, ops.size()));
}

Status StageExecutor::choose_device() {
  device_ = at::Device(options_.device);
  if (device_.is_cuda() && !at::hasCUDA()) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("device '{}': this LibTorch has no CUDA\n  hint: use device 'cpu'",
                              options_.device));
  }
  return {};
}

void StageExecutor::note_precision() {
  const Precision precision = plan_.training.precision;
  if (precision != Precision::kFp32) {
    notes_ = fmt::format("the plan's precision is {}; this executor computes and sends fp32",
                         name_of(precision));
  }
}

Status StageExecutor::check_inputs() const {
  const std::vector<TensorId> received = cuts_.incoming();
  for (TensorId id : inputs()) {
    const Tensor& tensor = graph_.tensor(id);
    const std::string& stage = plan_.stages[static_cast<std::size_t>(stage_)].name;
    if (tensor.kind == TensorKind::kActivation &&
        std::find(received.begin(), received.end(), id) == received.end()) {
      return invalid_input(
          fmt::format("stage {} needs tensor '{}', which no cut brings", stage, tensor.name));
    }
  }
  return {};
}

Status StageExecutor::allocate_weights() {
  for (TensorId id : inputs()) {
    const TensorKind kind = graph_.tensor(id).kind;
    if (kind == TensorKind::kParameter || kind == TensorKind::kState) weights_.push_back(id);
  }
  AGPCS_RETURN_IF_ERROR(parameters_.allocate(graph_, plan_, {stage_, rank_}, weights_,
                                             options_.seed, device_, team_.get()));
  for (const StageCode::Segment& segment : code_.segments()) {
    parameters_.expect_gradients(segment.inputs);
  }
  return {};
}

// The plan's optimizer with the learning rate of a step.
Optimizer StageExecutor::optimizer_at(std::int64_t step) const {
  Optimizer optimizer = plan_.training.optimizer;
  optimizer.learning_rate *= options_.schedule.factor(step);
  return optimizer;
}

// A recorded pass reads it on the GPU, so that each replay draws anew.
void StageExecutor::tell_samples_before(std::int64_t step, int batch) {
  if (samples_before_.defined()) samples_before_.fill_(feed_.samples_before(step, batch));
}

Status StageExecutor::begin_step(std::int64_t step) {
  return guarded("beginning a step", [&]() -> Status {
    step_ = step;
    batch_ = 0;
    evaluates_ = false;
    if (!recording_) {
      parameters_.load_step(optimizer_at(step), step);
      tell_samples_before(step, 0);
    }
    loss_->clear();
    parameters_.clear_gradients();
    cuts_.begin_step();
    for (SegmentPasses& passes : passes_) passes = {};
    if (team_) team_->begin_step(passes_.size());
    for (PutOffProducts& products : put_off_) products = {};
    return {};
  });
}

Status StageExecutor::next_batch() {
  return guarded("beginning a batch", [&]() -> Status {
    tell_samples_before(step_, ++batch_);
    cuts_.begin_step();
    return {};
  });
}

Result<bool> StageExecutor::begin_evaluation(std::int64_t batch) {
  if (!evaluation_) return Executor::begin_evaluation(batch);
  return guarded("beginning an evaluation", [&]() -> Result<bool> {
    evaluates_ = true;
    cuts_.begin_step();
    return evaluation_->begin(batch);
  });
}

Status StageExecutor::evaluate(int micro_batch) {
  const at::NoGradGuard no_gradients;
  const StageFeed::Share& share = feed_.share_of(micro_batch);
  const StageEvaluation::Rows rows =
      evaluation_->rows(plan_.first_sample(micro_batch) + share.offset, share.samples);
  if (rows.computed == 0) {
    uses_.pass_by();
    return {};
  }
  const auto alone = [&](std::int64_t samples, Values& values, StageCode::Run run) -> Status {
    run.uses = uses_.empty() ? nullptr : &uses_;
    AGPCS_TRY(const StageCode* own, evaluation_->code(samples));
    (own == nullptr ? code_of(micro_batch) : *own).run(values, run);
    return {};
  };
  const auto in_team = [&](std::int64_t samples, Values& values, const StageCode::Run& run) {
    return team_->evaluate(samples, evaluation_->kept(), values, run);
  };
  StageEvaluation::Computation by{inputs(), alone};
  if (team_) {
    by.run = in_team;
    by.counts = team_->member() == 0;
  }
  return evaluation_->pass(rows, micro_batch, parameters_.values(), by, cuts_);
}

StageCode::Run StageExecutor::run_of(int micro_batch) {
  StageCode::Run run;
  run.seed = options_.seed;
  run.first_sample = feed_.first_sample(micro_batch, step_, batch_);
  run.samples_before = feed_.samples_before(step_, batch_);
  if (samples_before_.defined()) {
    run.samples_before_here = samples_before_.data_ptr<std::int64_t>();
  }
  run.clock = clock_.get();
  run.labels = &feed_.labels();
  run.asked_device = &asked_device_;
  if (!put_off_.empty()) run.put_off = &put_off_[static_cast<std::size_t>(micro_batch)];
  run.uses = uses_.empty() ? nullptr : &uses_;
  return run;
}

Values StageExecutor::first_gradients(int micro_batch) const {
  Values gradients = cuts_.received_gradients(micro_batch);
  if (has_loss_) {
    const at::ScalarType type = computed_type(graph_.tensor(graph_.loss).type);
    gradients[graph_.loss] =
        at::full({}, feed_.weight_of(micro_batch), at::TensorOptions().dtype(type).device(device_));
  }
  return gradients;
}

Status StageExecutor::forward(const StagePass& of) {
  const int micro_batch = of.micro_batch;
  return ended(guarded(fmt::format("forward of micro-batch {}", micro_batch), [&]() -> Status {
    if (evaluates_) return evaluate(micro_batch);
    const Timed timed(times_.get(), slot(Opcode::kForward, micro_batch));
    if (clock_) clock_->start();
    Values values = parameters_.values();
    if (!recording_) AGPCS_RETURN_IF_ERROR(feed_.count_labels(step_));
    AGPCS_RETURN_IF_ERROR(feed_.load(micro_batch, step_, batch_, values));
    cuts_.put_received(micro_batch, values);
    compute(micro_batch, values);
    // The loss of a team is its first member's.
    if (has_loss_ && (!team_ || team_->member() == 0)) {
      loss_->add(values.at(graph_.loss).detach().sum() * feed_.weight_of(micro_batch));
    }
    cuts_.keep_sent(micro_batch, values);
    values.clear();
    stop_clock(Opcode::kForward);
    return {};
  }));
}

void StageExecutor::stop_clock(Opcode pass) {
  if (!clock_) return;
  if (busy_) busy_->let_go();
  clock_->stop(pass);
}

void StageExecutor::compute(int micro_batch, Values& values) {
  const auto pass = static_cast<std::size_t>(micro_batch);
  StageCode::Run run = run_of(micro_batch);
  run.new_state = [this](TensorId id, const at::Tensor& value) {
    parameters_.set_state(id, value);
  };
  if (team_) {
    team_->forward(pass, feed_.share_of(micro_batch).samples, values, run);
  } else {
    passes_[pass].forward(graph_, code_of(micro_batch), values, run);
  }
}

Status StageExecutor::backward(const StagePass& of, bool last, GradientListener& listener) {
  const int micro_batch = of.micro_batch;
  return ended(guarded(fmt::format("backward of micro-batch {}", micro_batch), [&]() -> Status {
    const Timed timed(times_.get(), slot(Opcode::kBackward, micro_batch));
    if (clock_) clock_->start();
    const auto pass = static_cast<std::size_t>(micro_batch);
    parameters_.begin_backward(last && !team_, listener);
    if (team_) {
      team_->backward(pass, first_gradients(micro_batch));
    } else {
      passes_[pass].backward(first_gradients(micro_batch), parameters_.values(),
                             run_of(micro_batch));
    }
    parameters_.end_backward();
    if (team_ && last) end_team_step(listener);
    cuts_.end_backward(micro_batch);
    stop_clock(Opcode::kBackward);
    return {};
  }));
}

/// No gradient is complete before the members have exchanged those of copies.
void StageExecutor::end_team_step(GradientListener& listener) {
  team_->step_end(parameters_.values());
  parameters_.begin_backward(true, listener);
  parameters_.end_backward();
}

Status StageExecutor::backward_input(const StagePass& of) {
  const int micro_batch = of.micro_batch;
  return guarded(fmt::format("input pass of micro-batch {}", micro_batch), [&]() -> Status {
    const Timed timed(times_.get(), slot(Opcode::kBackwardInput, micro_batch));
    passes_[static_cast<std::size_t>(micro_batch)].backward(
        first_gradients(micro_batch), parameters_.values(), run_of(micro_batch));
    cuts_.end_backward(micro_batch);
    return {};
  });
}

Status StageExecutor::backward_weight(const StagePass& of, bool last, GradientListener& listener) {
  const int micro_batch = of.micro_batch;
  return guarded(fmt::format("weight pass of micro-batch {}", micro_batch), [&]() -> Status {
    const Timed timed(times_.get(), slot(Opcode::kBackwardWeight, micro_batch));
    PutOffProducts& products = put_off_[static_cast<std::size_t>(micro_batch)];
    parameters_.begin_weight_pass(products.parameters(), last, listener);
    products.finish();
    parameters_.end_backward();
    return {};
  });
}

Result<double> StageExecutor::squares(int bucket) {
  double squares = 0;
  AGPCS_RETURN_IF_ERROR(guarded("the norm of gradients", [&]() -> Status {
    AGPCS_TRY(squares, parameters_.squares(bucket));
    return {};
  }));
  return squares;
}

Status StageExecutor::scale(double factor) {
  return guarded("clipping gradients", [&]() -> Status {
    if (factor != 1) parameters_.scale(factor);
    return {};
  });
}

Status StageExecutor::update() {
  return guarded("the optimizer's step", [&]() -> Status {
    const Timed timed(times_.get(), slot(Opcode::kUpdate, 0));
    parameters_.update(optimizer_at(step_), step_);
    return {};
  });
}

std::string StageExecutor::recording_obstacle() const {
  std::string why = team_ ? "its team exchanges within passes" : code_.recording_obstacle();
  if (why.empty() && plan_.stages[static_cast<std::size_t>(stage_)].state_in_host) {
    why = "its optimizer's state is in the host's memory";
  }
  if (why.empty() && asked_device_ != kNone) {
    why = describe_obstacle(graph_.op(asked_device_), "it asks the device for values");
  }
  if (why.empty() && clock_ != nullptr) why = "its operators are being timed";
  if (why.empty() && evaluation_) why = "it evaluates between steps";
  if (why.empty() && !device_.is_cuda()) why = "it computes on a CPU";
  return why;
}

Status StageExecutor::begin_recording() {
  return guarded("preparing to record a step", [&]() -> Status {
    feed_.hold();
    graph_memory_ = make_graph_memory(device_);
    if (graph_memory_) graph_memory_->begin();
    recording_ = true;
    return {};
  });
}

Status StageExecutor::end_recording() {
  return guarded("recording a step", [&]() -> Status {
    if (recording_ && graph_memory_) graph_memory_->end();
    feed_.stop_holding();
    recording_ = false;
    return {};
  });
}

Status StageExecutor::load_step(std::int64_t step) {
  return guarded(fmt::format("loading step {}", step), [&]() -> Status {
    step_ = step;
    if (times_) times_->replayed();
    parameters_.load_step(optimizer_at(step), step);
    tell_samples_before(step, batch_);
    AGPCS_RETURN_IF_ERROR(feed_.count_labels(step));
    return feed_.load_held(step, batch_);
  });
}

InstructionTime StageExecutor::time_of(const InstructionId& id) {
  if (!times_) return {};
  try {
    return times_->of(slot(id.opcode, id.micro_batch));
  } catch (const std::exception&) {  // the call that computes on a failed device reports it
    return {};
  }
}

double StageExecutor::loss() const {
  try {
    return loss_ ? loss_->value() : 0;
  } catch (const std::exception&) {  // the same
    return std::numeric_limits<double>::quiet_NaN();
  }
}

Result<Buffer> StageExecutor::round_bucket(int bucket, DType type) {
  return guarded("rounding gradients", [&] {
    const auto rounded = type == DType::kFp16 ? at::kHalf : at::kBFloat16;
    return flat_buffer(bucket, parameters_.round(bucket, rounded), type);
  });
}

Status StageExecutor::widen_bucket(int bucket) {
  return guarded("widening gradients", [&]() -> Status {
    parameters_.widen(bucket);
    return {};
  });
}

Status StageExecutor::observe(OperatorObserver* observer) {
  return guarded("timing operators", [&]() -> Status {
    if (observer != nullptr && team_) {
      return {StatusCode::kUnavailable, "operators of a team are not timed"};
    }
    if (observer != nullptr && !put_off_.empty()) {
      return {StatusCode::kUnavailable, "operators of parted backward passes are not timed"};
    }
    clock_ = observer == nullptr ? nullptr : std::make_unique<PassClock>(*observer, device_);
    return {};
  });
}

Result<std::vector<float>> StageExecutor::value(std::string_view name) const {
  for (TensorId id : weights_) {
    if (graph_.tensor(id).name != name) continue;
    if (parameters_.is_freed_by_passes(parameters_.values().at(id))) {
      return invalid_input(fmt::format("this rank has a part of parameter '{}' alone", name));
    }
    const at::Tensor host =
        parameters_.values().at(id).detach().to(at::kCPU, at::kFloat).contiguous();
    const auto* first = host.data_ptr<float>();
    return std::vector<float>(first, first + host.numel());
  }
  return invalid_input(fmt::format("this rank's stage has no parameter or state '{}'", name));
}

std::vector<std::string> StageExecutor::names() const {
  std::vector<std::string> all;
  for (TensorId id : weights_) all.push_back(graph_.tensor(id).name);
  return all;
}

}  // namespace

std::unique_ptr<OneStageExecutor> make_stage_executor(const Graph& graph,
                                                      const TorchOptions& options, int stage) {
  return std::make_unique<StageExecutor>(graph, options, stage);
}

}  // namespace agpcs
