// SPDX-License-Identifier: Apache-2.0
// The stage executor's preparation, its recordings, and what it tells of itself.
#include "runtime/torch/stage_executor.h"

#include "ir/strategy/memory.h"
#include "ir/strategy/segments.h"
#include "ir/strategy/stage_memory.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace agpcs {

Result<Buffer> StageExecutor::flat_buffer(int bucket, const at::Tensor& flat, DType type) {
  if (flat.defined()) return Buffer{flat.data_ptr(), flat.nbytes(), type, flat.is_cuda()};
  return internal_error(fmt::format("bucket {} is not of this stage", bucket));
}

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
  if (stage.activations_in_host) AGPCS_RETURN_IF_ERROR(prepare_host(ops));
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
  const SegmentEnds segments{segment_ends(stage, ops.size()), stage.recompute,
                             stage.activations_in_host};
  return StageCode::compile(graph_, ops, samples, keep, device_, segments);
}

/// Finds which activations go to the host's memory.
Status StageExecutor::prepare_host(const std::vector<OpId>& ops) {
  if (!SavesToHost::prepare()) {
    return {StatusCode::kUnavailable,
            "activations in the host's memory: autograd's engine is another program's"};
  }
  copies_ = std::make_unique<HostCopies>(device_);
  moved_ = StageMemoryModel(graph_, plan_.training)
               .moved(parts_of_stage(plan_, graph_, stage_, ops), feed_.larger().samples);
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

std::string StageExecutor::recording_obstacle() const {
  std::string why = team_ ? "its team exchanges within passes" : code_.recording_obstacle();
  if (why.empty() && plan_.stages[static_cast<std::size_t>(stage_)].state_in_host) {
    why = "its optimizer's state is in the host's memory";
  }
  if (why.empty() && copies_) why = "its activations are in the host's memory";
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
    tell_samples_before(step, 0);  // no step of several batches is recorded
    AGPCS_RETURN_IF_ERROR(feed_.count_labels(step));
    return feed_.load_held(step, 0);
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
    if (observer != nullptr && !put_off_.empty()) {
      return {StatusCode::kUnavailable, "operators of parted backward passes are not timed"};
    }
    clock_ = observer == nullptr ? nullptr
                                 : std::make_unique<PassClock>(*observer, device_, busy_clock());
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

std::unique_ptr<OneStageExecutor> make_stage_executor(const Graph& graph,
                                                      const TorchOptions& options, int stage) {
  return std::make_unique<StageExecutor>(graph, options, stage);
}

}  // namespace agpcs
