// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/stage.h"

#include "ir/base/check.h"
#include "ir/graph/op_table.h"
#include "ir/strategy/weight_pass.h"
#include "runtime/torch/data/labels.h"
#include "runtime/torch/device/clock.h"
#include "runtime/torch/executor.h"
#ifdef AGPCS_TORCH_CUDA
#include "runtime/torch/ops/draw.h"
#endif
#include "runtime/torch/parameters/parameter_uses.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

namespace agpcs {
namespace {

std::string unknown_operators(const std::vector<const Op*>& ops) {
  std::set<std::string> types;
  std::string first;
  for (const Op* op : ops) {
    if (find_kernel(op->domain, op->type) != nullptr) continue;
    if (types.empty()) first = op->name;
    types.insert(op->domain.empty() ? op->type : op->domain + "." + op->type);
  }
  if (types.empty()) return {};
  return fmt::format(
      "the LibTorch executor does not run {} (first: node '{}')\n"
      "  hint: docs/reference/executed_operators.md lists the operators that it runs",
      fmt::join(types, ", "), first);
}

// Returns whether Dropout drops anything here. `host` has its constants.
bool draws_mask(const Op& op, const Tensors& host) {
  if (op.version < 12 || op.inputs.size() < 3 || op.inputs[2] == kNone) return false;
  return !host[2].defined() || host[2].to(at::kDouble).item<double>() != 0;
}

// Returns why the operator cannot be recorded with any inputs, or nullptr.
const char* obstacle_of(const Op& op, const Tensors& host, bool device_draws) {
  if (op.type == "Dropout" && draws_mask(op, host) && !device_draws) {
    return "the host draws its mask";
  }
  if (!device_draws &&
      (op.type == "RandomUniformLike" || op.type == "RandomNormalLike" || op.type == "Bernoulli")) {
    return "the host draws its numbers";
  }
  if (op.type == "NonZero" || op.type == "Compress") return "it asks the device how much it gives";
  if (op.type == "Resize" || op.type == "Upsample") return "the host works out its weights";
  return nullptr;
}

}  // namespace

bool is_fixed(const Tensor& tensor) {
  return tensor.kind == TensorKind::kConstant || tensor.kind == TensorKind::kPrepared;
}

bool draws_itself([[maybe_unused]] at::Device device) {
#ifdef AGPCS_TORCH_CUDA
  return device.is_cuda() && can_draw_on_gpu();
#else
  return false;
#endif
}

int batch_axis_of(const Shape& shape) {
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis].per_sample != 0) return static_cast<int>(axis);
  }
  return kNone;
}

Status check_kernels(const Graph& graph, const std::vector<OpId>& ops) {
  std::vector<const Op*> own;
  for (const OpId id : ops) own.push_back(&graph.op(id));
  std::string unknown = unknown_operators(own);
  return unknown.empty() ? Status() : invalid_input(std::move(unknown));
}

std::string describe_obstacle(const Op& op, const char* why) {
  return fmt::format("node '{}' ({}): {}", op.name, op.type, why);
}

std::string StageCode::recording_obstacle() const {
  for (const Step& step : steps_) {
    const Op& op = graph_->op(step.op);
    const char* why = obstacle_of(op, step.host, draws_here_);
    if (why != nullptr) return describe_obstacle(op, why);
  }
  return {};
}

std::string brief(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

Status failure_of(std::string_view what, const std::exception& error) {
  const std::string text = brief(error);
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  // texts of ATen, of CUDA, and of std::bad_alloc that was caught and passed on
  if (says("can't allocate memory") || says("out of memory") || says("bad_alloc")) {
    return {StatusCode::kUnavailable,
            fmt::format("{}: out of memory: {}\n"
                        "  hint: a plan with more micro-batches or a smaller --batch needs less; "
                        "cluster.yaml says how much memory the planner takes this device to have",
                        what, text)};
  }
  return invalid_input(fmt::format("{}: {}", what, text));
}

Result<at::Tensor> constant_tensor(const Tensor& tensor, std::int64_t samples) {
  const std::vector<std::int64_t> dims = dims_at(tensor.shape, samples);
  const std::int64_t elements = elements_at(tensor.shape, samples);
  if (!tensor.constant.per_sample.empty()) {
    const std::vector<std::int64_t> ints = tensor.constant.ints_at(samples);
    return at::tensor(ints, at::kLong).view(dims);
  }
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(tensor.type);
  if (tensor.constant.bytes.size() != bytes) {
    return invalid_input(fmt::format("tensor '{}' has {} bytes of values, its shape needs {}",
                                     tensor.name, tensor.constant.bytes.size(), bytes));
  }
  at::Tensor value = at::empty(dims, stored_type(tensor.type));
  if (bytes > 0) std::memcpy(value.data_ptr(), tensor.constant.bytes.data(), bytes);
  return value.to(computed_type(tensor.type));
}

Result<FixedTensors> fixed_tensors(const Graph& graph, const std::vector<TensorId>& wanted,
                                   std::int64_t samples) {
  std::set<TensorId> open(wanted.begin(), wanted.end());
  std::vector<const Op*> ops;
  for (auto op = graph.prologue.rbegin(); op != graph.prologue.rend(); ++op) {
    if (std::none_of(op->outputs.begin(), op->outputs.end(),
                     [&](TensorId id) { return id != kNone && open.count(id) > 0; })) {
      continue;
    }
    ops.push_back(&*op);
    open.insert(op->inputs.begin(), op->inputs.end());
  }
  if (std::string unknown = unknown_operators(ops); !unknown.empty()) {
    return invalid_input(std::move(unknown));
  }
  FixedTensors values;
  for (const TensorId id : open) {
    if (id == kNone || graph.tensor(id).kind != TensorKind::kConstant) continue;
    AGPCS_TRY(values[id], constant_tensor(graph.tensor(id), samples));
  }
  const at::NoGradGuard no_gradients;
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    Tensors in((*op)->inputs.size());
    for (std::size_t i = 0; i < in.size(); ++i) {
      if ((*op)->inputs[i] != kNone) in[i] = values.at((*op)->inputs[i]);
    }
    Tensors out;
    try {
      out = find_kernel((*op)->domain, (*op)->type)({**op, in, &in, {0, 0, samples, kNone}});
    } catch (const std::exception& error) {
      return failure_of(fmt::format("node '{}' ({})", (*op)->name, (*op)->type), error);
    }
    for (std::size_t i = 0; i < out.size() && i < (*op)->outputs.size(); ++i) {
      if ((*op)->outputs[i] != kNone) values[(*op)->outputs[i]] = std::move(out[i]);
    }
  }
  FixedTensors result;
  for (const TensorId id : wanted) result[id] = values.at(id);
  return result;
}

Result<StageCode> StageCode::compile(const Graph& graph, const std::vector<OpId>& ops,
                                     std::int64_t samples, const std::vector<TensorId>& keep,
                                     at::Device device, const SegmentEnds& segments) {
  AGPCS_RETURN_IF_ERROR(check_kernels(graph, ops));
  StageCode code;
  code.graph_ = &graph;
  code.samples_ = samples;
  code.draws_here_ = draws_itself(device);
  code.bind(ops);
  code.find_last_uses(keep);
  code.find_segments(keep, segments);
  AGPCS_RETURN_IF_ERROR(code.load_constants(keep, device));
  return code;
}

void StageCode::bind(const std::vector<OpId>& ops) {
  std::set<TensorId> made, read;
  for (OpId id : ops) {
    const Op& op = graph_->op(id);
    Step step{id, find_kernel(op.domain, op.type), kNone, kNone, Tensors(op.inputs.size()), {}};
    if (const int weight = put_off_input(*graph_, id); weight != kNone) {
      step.put_off = storage_of(*graph_, op.inputs[static_cast<std::size_t>(weight)]);
    }
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] == kNone) continue;
      const bool comes = !is_fixed(graph_->tensor(op.inputs[i])) && made.count(op.inputs[i]) == 0;
      if (comes) read.insert(op.inputs[i]);
    }
    if (!op.inputs.empty() && op.inputs[0] != kNone) {
      step.batch_axis = batch_axis_of(graph_->tensor(op.inputs[0]).shape);
    }
    for (TensorId out : op.outputs) made.insert(out);
    steps_.push_back(std::move(step));
  }
  inputs_.assign(read.begin(), read.end());
}

Status StageCode::load_constants(const std::vector<TensorId>& keep, at::Device device) {
  for (const TensorId id : keep) {
    if (is_fixed(graph_->tensor(id))) fixed_results_.push_back(id);
  }
  std::vector<TensorId> wanted = fixed_results_;
  for (const Step& step : steps_) {
    for (const TensorId id : graph_->op(step.op).inputs) {
      if (id != kNone && is_fixed(graph_->tensor(id))) wanted.push_back(id);
    }
  }
  AGPCS_TRY(const FixedTensors fixed, fixed_tensors(*graph_, wanted, samples_));
  for (const auto& [id, value] : fixed) constants_.emplace(id, value.to(device));
  for (Step& step : steps_) {
    const std::vector<TensorId>& inputs = graph_->op(step.op).inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] != kNone && graph_->tensor(inputs[i]).kind == TensorKind::kConstant)
        step.host[i] = fixed.at(inputs[i]);
    }
  }
  return {};
}

void StageCode::find_last_uses(const std::vector<TensorId>& keep) {
  std::set<TensorId> seen(keep.begin(), keep.end());
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    const Op& op = graph_->op(step->op);
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (TensorId id : *list) {
        if (id != kNone && seen.insert(id).second) step->dead.push_back(id);
      }
    }
  }
}

void StageCode::find_segments(const std::vector<TensorId>& keep, const SegmentEnds& segments) {
  std::size_t first = 0;
  for (const std::size_t end : segments.ends) {
    segments_.push_back({first, end, segments.recomputed, segments.in_host, {}, {}});
    first = end;
  }
  if (first < steps_.size() || segments_.empty()) {
    segments_.push_back({first, steps_.size(), false, false, {}, {}});
  }
  std::set<TensorId> wanted(keep.begin(), keep.end());
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    std::set<TensorId> made, read;
    for (std::size_t i = segment->first; i < segment->end; ++i) {
      const Op& op = graph_->op(steps_[i].op);
      for (const TensorId id : op.inputs) {
        if (id == kNone || is_fixed(graph_->tensor(id))) continue;
        if (made.count(id) == 0) read.insert(id);
      }
      made.insert(op.outputs.begin(), op.outputs.end());
    }
    std::set_intersection(made.begin(), made.end(), wanted.begin(), wanted.end(),
                          std::back_inserter(segment->results));
    segment->inputs.assign(read.begin(), read.end());
    wanted.insert(read.begin(), read.end());
  }
}

void StageCode::run(std::unordered_map<TensorId, at::Tensor>& values, const Run& run) const {
  for (const Segment& segment : segments_) run_segment(segment, values, run);
  for (const TensorId id : fixed_results_) values[id] = constants_.at(id);
}

void StageCode::run_segment(const Segment& segment,
                            std::unordered_map<TensorId, at::Tensor>& values,
                            const Run& run) const {
  for (std::size_t i = segment.first; i < segment.end; ++i) {
    const Step& step = steps_[i];
    try {
      if (run.clock != nullptr) run.clock->begin(step.op);
      if (run.uses != nullptr && !run.again) run.uses->begin(step.op);
      run_step(step, values, run);
      if (run.uses != nullptr && !run.again) run.uses->end(step.op);
    } catch (const std::exception& error) {
      const Op& op = graph_->op(step.op);
      throw KernelError(fmt::format("node '{}' ({}): {}", op.name, op.type, brief(error)));
    }
  }
}

void StageCode::run_step(const Step& step, std::unordered_map<TensorId, at::Tensor>& values,
                         const Run& run) const {
  const Op& op = graph_->op(step.op);
  bool asked = false;
  RandomSource source{run.seed, run.first_sample, samples_, step.batch_axis};
  source.before = run.samples_before;
  source.before_here = run.samples_before_here;
  OpCall call{op,
              Tensors(op.inputs.size()),
              &step.host,
              source,
              run.labels == nullptr ? nullptr : run.labels->labels_per_sample(step.op),
              run.evaluates,
              &asked,
              step.put_off == kNone ? nullptr : run.put_off,
              step.put_off};
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i] == kNone) continue;
    const auto constant = constants_.find(op.inputs[i]);
    call.in[i] = constant != constants_.end() ? constant->second : values.at(op.inputs[i]);
  }
  Tensors outputs = step.kernel(call);
  if (run.uses != nullptr) run.uses->take_out(step.op, outputs);
  if (asked && run.asked_device != nullptr) *run.asked_device = step.op;
  for (std::size_t i = 0; i < op.outputs.size() && i < outputs.size(); ++i) {
    if (op.outputs[i] != kNone) values[op.outputs[i]] = outputs[i];
  }
  if (run.clock != nullptr) run.clock->await_backward(step.op, outputs);
  if (run.uses != nullptr && !run.evaluates) run.uses->await_backward(step.op, outputs);
  // In training, batch norm returns new running statistics as outputs 1 and 2 for inputs 3 and 4.
  if (op.type == "BatchNormalization" && outputs.size() >= 3 && run.new_state) {
    run.new_state(op.inputs[3], outputs[1]);
    run.new_state(op.inputs[4], outputs[2]);
  }
  for (TensorId id : step.dead) values.erase(id);
}

}  // namespace agpcs
