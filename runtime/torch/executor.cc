// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/executor.h"

#include "ir/strategy/memory.h"
#include "runtime/torch/clock.h"
#include "runtime/torch/cuts.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/evaluation.h"
#include "runtime/torch/graph.h"
#include "runtime/torch/labels.h"
#include "runtime/torch/parameters.h"
#include "runtime/torch/probe.h"
#include "runtime/torch/progress.h"
#include "runtime/torch/stage.h"
#include "runtime/torch/threads.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

using Values = std::unordered_map<TensorId, at::Tensor>;

Result<Buffer> flat_buffer(int bucket, const at::Tensor& flat, DType type = DType::kFp32) {
  if (flat.defined()) return Buffer{flat.data_ptr(), flat.nbytes(), type, flat.is_cuda()};
  return internal_error(fmt::format("bucket {} is not of this stage", bucket));
}

class StageExecutor final : public TorchExecutor {
 public:
  StageExecutor(const Graph& graph, TorchOptions options)
      : graph_(graph), options_(std::move(options)) {
    if (!options_.data) options_.data = make_synthetic_data(graph_, options_.seed);
  }

  Status prepare(const Plan& plan, int rank) override;
  Status begin_step(std::int64_t step) override;
  Status next_batch() override;
  Result<bool> begin_evaluation(std::int64_t batch) override;
  Evaluation evaluation() const override {
    return evaluation_ ? evaluation_->sums() : Evaluation{};
  }
  Status forward(int micro_batch) override;
  Status backward(int micro_batch, bool last, GradientListener& listener) override;
  Status update() override;

  Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch) override {
    return guarded("a cut's activation",
                   [&] { return cuts_.activation(cut, transfer, micro_batch); });
  }
  Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch) override {
    return guarded("a cut's gradient", [&] { return cuts_.gradient(cut, transfer, micro_batch); });
  }
  Result<Buffer> bucket(int bucket) override {
    return flat_buffer(bucket, parameters_.gradient(bucket));
  }
  Result<Buffer> values(int bucket) override {
    return flat_buffer(bucket, parameters_.value(bucket));
  }
  Result<Buffer> round_bucket(int bucket, DType type) override;
  Status widen_bucket(int bucket) override;
  double loss() const override;
  InstructionTime time_of(const InstructionId& id) override;
  double probe(double seconds) override { return probe_.run(seconds, device_); }

  std::string recording_obstacle() const override;
  Status begin_recording() override;
  Status end_recording() override;
  Status load_step(std::int64_t step) override;

  std::vector<StateItem> state() const override { return parameters_.state(); }
  Status read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                    float* out) const override {
    return guarded("reading state", [&] { return parameters_.read(item, first, count, out); });
  }
  Status write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                     const float* values) override {
    return guarded("writing state", [&] { return parameters_.write(item, first, count, values); });
  }

  Result<std::vector<float>> value(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::string notes() const override { return notes_; }
  Status observe(OperatorObserver* observer) override;
  double busy_seconds() const override { return busy_seconds_of(device_); }

 private:
  // A micro-batch between its forward and its backward pass.
  struct Kept {
    Values values;    // the sent tensors and the loss, with their autograd graph
    at::Tensor loss;  // scaled to its part of the batch's mean
  };

  // The rows of a micro-batch that this rank takes.
  struct Share {
    std::int64_t samples = 0, offset = 0;
  };
  const Share& share_of(int micro_batch) const {
    return plan_.is_smaller(micro_batch) ? smaller_ : larger_;
  }
  const StageCode& code_of(int micro_batch) const {
    return share_of(micro_batch).samples == larger_.samples ? code_ : smaller_code_;
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

  Status prepare_stage(const Plan& plan, int rank);
  Status find_share(int rank);
  Status choose_device();
  void note_precision();
  Status allocate_weights();
  Status check_inputs() const;
  Status load_inputs(int micro_batch, Values& values);
  Status fill(TensorId input, int micro_batch, std::int64_t step, void* out) {
    const std::int64_t first = first_sample(micro_batch, options_.fixed_batch ? 0 : step, batch_);
    return options_.data->fill(input, first, share_of(micro_batch).samples, out);
  }
  /// Counts the labels of step `step`'s samples that count, for losses that are means over them.
  Status count_labels(std::int64_t step);
  double samples_of_step() const {
    return static_cast<double>(plan_.training.batch) * options_.batches;
  }
  Result<Kept> run(int micro_batch, bool first_time);
  Status evaluate(int micro_batch);
  std::int64_t first_sample(int micro_batch, std::int64_t step, int batch) const;
  Optimizer optimizer_at(std::int64_t step) const;
  std::size_t slot(Opcode computation, int micro_batch) const {
    if (computation == Opcode::kUpdate) return 2 * kept_.size();
    return static_cast<std::size_t>(micro_batch) +
           (computation == Opcode::kBackward ? kept_.size() : 0);
  }

  const Graph& graph_;
  TorchOptions options_;
  Plan plan_;
  int rank_ = 0, stage_ = 0;
  Share larger_, smaller_;  // this rank's, of micro-batches of either size
  bool has_loss_ = false;
  at::Device device_ = at::kCPU;
  std::string notes_;
  StageCode code_, smaller_code_;  // for the samples of `larger_` and, if they differ, `smaller_`
  LabelCounter labels_;
  std::int64_t counted_step_ = -1;  // the step for which `labels_` has counted
  StageParameters parameters_;
  CutBuffers cuts_;
  std::unique_ptr<StageEvaluation> evaluation_;  // nullptr: there are no samples for it
  bool evaluates_ = false;                       // what runs is an evaluation, not a step
  std::vector<TensorId> weights_;
  std::unique_ptr<PassClock> clock_;  // nullptr: there is no observer
  std::vector<Kept> kept_;            // by micro-batch
  std::int64_t step_ = 0;
  int batch_ = 0;  // of the step
  std::unique_ptr<StepLoss> loss_;
  DeviceProbe probe_;
  std::unique_ptr<ComputeTimes> times_;  // nullptr: calls end with their computations
  OpId asked_device_ = kNone;            // an operator that asks the device for values
  bool recording_ = false;
  std::unique_ptr<GraphMemory> graph_memory_;
  HeldInputs held_;  // inputs of recorded steps
};

Status StageExecutor::prepare(const Plan& plan, int rank) {
  return guarded("preparing the LibTorch executor", [&] { return prepare_stage(plan, rank); });
}

Status StageExecutor::prepare_stage(const Plan& plan, int rank) {
  plan_ = plan;
  AGPCS_RETURN_IF_ERROR(find_share(rank));
  AGPCS_RETURN_IF_ERROR(choose_device());
  AGPCS_RETURN_IF_ERROR(use_threads(options_.threads));
  note_precision();
  AGPCS_TRY(auto stages, resolve_stages(plan_, graph_));
  const std::vector<OpId>& ops = stages[static_cast<std::size_t>(stage_)];
  AGPCS_RETURN_IF_ERROR(cuts_.prepare(graph_, plan_, rank, device_));
  std::vector<TensorId> keep = cuts_.outgoing();
  if (graph_.loss != kNone) {
    const OpId producer = graph_.tensor(graph_.loss).producer;
    has_loss_ = std::binary_search(ops.begin(), ops.end(), producer);
    if (has_loss_) keep.push_back(graph_.loss);
  }
  AGPCS_TRY(code_, StageCode::compile(graph_, ops, larger_.samples, keep, device_));
  if (smaller_.samples != larger_.samples) {
    AGPCS_TRY(smaller_code_, StageCode::compile(graph_, ops, smaller_.samples, keep, device_));
  }
  std::vector<std::int64_t> parts;
  for (int part = 0; part < options_.batches * plan_.micro_batches; ++part) {
    parts.push_back(plan_.micro_batch_size(part % plan_.micro_batches));
  }
  AGPCS_TRY(labels_, LabelCounter::make(graph_, ops, std::move(parts), device_));
  AGPCS_RETURN_IF_ERROR(check_inputs());
  AGPCS_RETURN_IF_ERROR(allocate_weights());
  if (options_.evaluation) {
    AGPCS_TRY(evaluation_,
              StageEvaluation::make(graph_, ops, cuts_.outgoing(), *options_.evaluation,
                                    plan_.training.batch, device_));
  }
  kept_.resize(static_cast<std::size_t>(plan_.micro_batches));
  loss_ = make_step_loss(device_);
  times_ = make_compute_times(device_, 2 * kept_.size() + 1);
  return {};
}

Status StageExecutor::find_share(int rank) {
  rank_ = rank;
  stage_ = plan_.stage_of_rank(rank);
  if (stage_ < 0) return invalid_input(fmt::format("the plan has no rank {}", rank));
  const PlanStage& stage = plan_.stages[static_cast<std::size_t>(stage_)];
  const auto at = std::find(stage.ranks.begin(), stage.ranks.end(), rank) - stage.ranks.begin();
  for (std::size_t i = 0; i <= static_cast<std::size_t>(at); ++i) {
    larger_ = {stage.samples_of(i, false), larger_.offset + larger_.samples};
    smaller_ = {stage.samples_of(i, true), smaller_.offset + smaller_.samples};
  }
  return {};
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
  for (TensorId id : code_.inputs()) {
    const Tensor& tensor = graph_.tensor(id);
    const std::string& stage = plan_.stages[static_cast<std::size_t>(stage_)].name;
    if (tensor.kind == TensorKind::kActivation &&
        std::find(received.begin(), received.end(), id) == received.end()) {
      return invalid_input(
          fmt::format("stage {} needs tensor '{}', which no cut brings", stage, tensor.name));
    }
    if (tensor.kind != TensorKind::kInput || !depends_on_batch(tensor.shape)) continue;
    if (tensor.shape[0].fixed != 0 || tensor.shape[0].per_sample == 0) {
      return invalid_input(
          fmt::format("input '{}' does not have the batch as its first axis", tensor.name));
    }
  }
  return {};
}

Status StageExecutor::allocate_weights() {
  for (TensorId id : code_.inputs()) {
    const TensorKind kind = graph_.tensor(id).kind;
    if (kind == TensorKind::kParameter || kind == TensorKind::kState) weights_.push_back(id);
  }
  return parameters_.allocate(graph_, plan_, rank_, weights_, options_.seed, device_);
}

std::int64_t StageExecutor::first_sample(int micro_batch, std::int64_t step, int batch) const {
  return (step * options_.batches + batch) * plan_.training.batch +
         plan_.first_sample(micro_batch) + share_of(micro_batch).offset;
}

// The plan's optimizer with the learning rate of a step.
Optimizer StageExecutor::optimizer_at(std::int64_t step) const {
  Optimizer optimizer = plan_.training.optimizer;
  optimizer.learning_rate *= options_.schedule.factor(step);
  return optimizer;
}

Status StageExecutor::begin_step(std::int64_t step) {
  return guarded("beginning a step", [&]() -> Status {
    step_ = step;
    batch_ = 0;
    evaluates_ = false;
    if (!recording_) parameters_.load_step(optimizer_at(step), step);
    loss_->clear();
    parameters_.clear_gradients();
    cuts_.begin_step();
    for (Kept& kept : kept_) kept = {};
    return {};
  });
}

Status StageExecutor::next_batch() {
  return guarded("beginning a batch", [&]() -> Status {
    ++batch_;
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
  const Share& share = share_of(micro_batch);
  const StageEvaluation::Rows rows =
      evaluation_->rows(plan_.first_sample(micro_batch) + share.offset, share.samples);
  if (rows.computed == 0) return {};
  Values values = parameters_.values();
  for (TensorId id : code_.inputs()) {
    if (graph_.tensor(id).kind != TensorKind::kInput) continue;
    AGPCS_TRY(const at::Tensor value, evaluation_->load(id, rows));
    values[id] = value.to(device_, computed_type(graph_.tensor(id).type));
  }
  cuts_.put_received(micro_batch, values);
  for (TensorId id : cuts_.incoming()) {
    if (!depends_on_batch(graph_.tensor(id).shape)) continue;
    values[id] = values[id].narrow(0, 0, rows.computed);
  }
  AGPCS_TRY(const StageCode* code, evaluation_->code(rows.computed));
  if (code == nullptr) code = &code_of(micro_batch);
  StageCode::Run run;
  run.labels = &evaluation_->labels();
  run.evaluates = true;
  code->run(values, run);
  evaluation_->add(values, rows);
  cuts_.keep_sent(micro_batch, values);
  return {};
}

Status StageExecutor::load_inputs(int micro_batch, Values& values) {
  if (recording_) {
    held_.put(static_cast<std::size_t>(micro_batch), values);
    return {};
  }
  for (TensorId id : code_.inputs()) {
    const Tensor& tensor = graph_.tensor(id);
    if (tensor.kind != TensorKind::kInput) continue;
    at::Tensor value = host_memory(dims_at(tensor.shape, share_of(micro_batch).samples),
                                   stored_type(tensor.type), device_);
    AGPCS_RETURN_IF_ERROR(fill(id, micro_batch, step_, value.data_ptr()));
    values[id] = value.to(device_, computed_type(tensor.type), /*non_blocking=*/true);
  }
  return {};
}

Status StageExecutor::count_labels(std::int64_t step) {
  if (step == counted_step_) return {};
  const std::int64_t of = options_.fixed_batch ? 0 : step;
  AGPCS_RETURN_IF_ERROR(labels_.count([&](TensorId id, std::int64_t part, void* out) {
    const std::int64_t micro_batch = part % plan_.micro_batches;
    const std::int64_t batch = of * options_.batches + part / plan_.micro_batches;
    const std::int64_t first = batch * plan_.training.batch + plan_.first_sample(micro_batch);
    return options_.data->fill(id, first, plan_.micro_batch_size(micro_batch), out);
  }));
  counted_step_ = step;
  return {};
}

Result<StageExecutor::Kept> StageExecutor::run(int micro_batch, bool first_time) {
  Values values = parameters_.values();
  if (!recording_) AGPCS_RETURN_IF_ERROR(count_labels(step_));
  AGPCS_RETURN_IF_ERROR(load_inputs(micro_batch, values));
  cuts_.put_received(micro_batch, values);
  StageCode::Run run;
  run.seed = options_.seed;
  run.first_sample = first_sample(micro_batch, step_, batch_);
  run.clock = clock_.get();
  run.labels = &labels_;
  run.asked_device = &asked_device_;
  if (first_time) {
    run.new_state = [this](TensorId id, const at::Tensor& value) {
      parameters_.set_state(id, value);
    };
  }
  code_of(micro_batch).run(values, run);
  Kept kept;
  if (has_loss_) {
    const double weight = static_cast<double>(share_of(micro_batch).samples) / samples_of_step();
    kept.loss = values.at(graph_.loss).sum() * weight;
  }
  if (first_time) cuts_.keep_sent(micro_batch, values);
  for (TensorId id : cuts_.outgoing()) kept.values[id] = values.at(id);
  return kept;
}

Status StageExecutor::forward(int micro_batch) {
  return guarded(fmt::format("forward of micro-batch {}", micro_batch), [&]() -> Status {
    if (evaluates_) return evaluate(micro_batch);
    const Timed timed(times_.get(), slot(Opcode::kForward, micro_batch));
    const bool recompute = plan_.stages[static_cast<std::size_t>(stage_)].recompute;
    const at::AutoGradMode mode(!recompute);
    if (clock_) clock_->start();
    AGPCS_TRY(Kept kept, run(micro_batch, true));
    if (has_loss_) loss_->add(kept.loss);
    if (!recompute) kept_[static_cast<std::size_t>(micro_batch)] = std::move(kept);
    if (clock_) clock_->stop(Opcode::kForward);
    return {};
  });
}

Status StageExecutor::backward(int micro_batch, bool last, GradientListener& listener) {
  return guarded(fmt::format("backward of micro-batch {}", micro_batch), [&]() -> Status {
    const Timed timed(times_.get(), slot(Opcode::kBackward, micro_batch));
    Kept& kept = kept_[static_cast<std::size_t>(micro_batch)];
    if (plan_.stages[static_cast<std::size_t>(stage_)].recompute) {
      if (clock_) clock_->start();
      AGPCS_TRY(kept, run(micro_batch, false));
      if (clock_) clock_->stop(Opcode::kForward);
    }
    if (clock_) clock_->start();
    Tensors roots, gradients;
    cuts_.add_roots(micro_batch, kept.values, roots, gradients);
    if (kept.loss.defined() && kept.loss.requires_grad()) {
      roots.push_back(kept.loss);
      gradients.push_back(at::ones_like(kept.loss));
    }
    if (last) parameters_.begin_last_backward(listener);
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    if (last) parameters_.end_last_backward();
    kept = {};
    cuts_.end_backward(micro_batch);
    if (clock_) clock_->stop(Opcode::kBackward);
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
  std::string why = code_.recording_obstacle();
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
    std::vector<HeldInput> inputs;
    for (TensorId id : code_.inputs()) {
      const Tensor& tensor = graph_.tensor(id);
      if (tensor.kind != TensorKind::kInput) continue;
      inputs.push_back({id, tensor.shape, tensor.type});
    }
    std::vector<std::int64_t> samples;
    for (std::size_t m = 0; m < kept_.size(); ++m) {
      samples.push_back(share_of(static_cast<int>(m)).samples);
    }
    held_.allocate(inputs, samples, device_);
    graph_memory_ = make_graph_memory(device_);
    if (graph_memory_) graph_memory_->begin();
    recording_ = true;
    return {};
  });
}

Status StageExecutor::end_recording() {
  return guarded("recording a step", [&]() -> Status {
    if (recording_ && graph_memory_) graph_memory_->end();
    recording_ = false;
    return {};
  });
}

Status StageExecutor::load_step(std::int64_t step) {
  return guarded(fmt::format("loading step {}", step), [&]() -> Status {
    step_ = step;
    if (times_) times_->replayed();
    parameters_.load_step(optimizer_at(step), step);
    AGPCS_RETURN_IF_ERROR(count_labels(step));
    return held_.load([&](std::size_t micro_batch, TensorId id, void* out) {
      return fill(id, static_cast<int>(micro_batch), step, out);
    });
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
    clock_ = observer == nullptr ? nullptr : std::make_unique<PassClock>(*observer, device_);
    return {};
  });
}

Result<std::vector<float>> StageExecutor::value(std::string_view name) const {
  for (TensorId id : weights_) {
    if (graph_.tensor(id).name != name) continue;
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

std::unique_ptr<TorchExecutor> make_torch_executor(const Graph& graph, TorchOptions options) {
  return std::make_unique<StageExecutor>(graph, std::move(options));
}

}  // namespace agpcs
