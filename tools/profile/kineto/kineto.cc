// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/kineto/kineto.h"

#include "cost_model/step/cost_table.h"
#include "ir/base/units.h"
#include "ir/graph/fused_attention.h"
#include "ir/graph/op_signature.h"
#include "ir/plan/choices.h"
#include "tools/profile/fits.h"
#include "tools/profile/kineto/match.h"
#include "tools/profile/kineto/steps.h"
#include "tools/profile/network/pace.h"
#include "tools/profile/pool.h"
#include "tools/profile/statistics.h"

#include <agpcs/version.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// The part of a step's time from which on a warning names what the profile lacks.
constexpr double kWorthTelling = 0.05;
/// The part of the traced time that must belong to operators of the model.
constexpr double kSameModel = 0.5;
constexpr double kMostSamples = 1 << 24;
/// How many more operators a step may have than the model.
constexpr std::size_t kMostOperators = 8;
constexpr double kMega = 1e6;
constexpr double kLeastSpread = 1e-9;
constexpr std::size_t kNamed = 5;  // operators in a message

constexpr std::string_view kAccumulating =
    "give the model that was traced, or none, for fits by class alone; where gradients are "
    "accumulated, call the profiler's step() after each micro-batch";

/// Steps whose operators are the same.
struct StepKind {
  std::vector<const TracedStep*> steps;
  std::int64_t samples = 0;

  const TracedStep& first() const { return *steps.front(); }
};

std::string percent(double part) { return fmt::format("{:.1f}%", 100 * part); }

template <typename Value>
Measured over(const std::vector<const TracedStep*>& steps, Value value) {
  std::vector<double> values;
  for (const TracedStep* step : steps) values.push_back(value(*step));
  Measured measured = summarize(std::move(values));
  if (measured.spread < kLeastSpread) measured.spread = 0;  // of sums of times that are the same
  return measured;
}

/// Scales times so that they add up to the median of their sum.
void make_whole(std::vector<TimedOp>& ops, Measured TimedOp::*pass, double whole) {
  double sum = 0;
  for (const TimedOp& op : ops) sum += (op.*pass).seconds;
  for (TimedOp& op : ops) op.*pass = scaled(op.*pass, sum > 0 ? whole / sum : 1);
}

class ProfileMaker {
 public:
  ProfileMaker(const KinetoTrace& trace, const Graph* model, const KinetoOptions& options)
      : trace_(trace), model_(model), options_(options), steps_(steps_of(trace)) {}

  Result<KinetoProfile> make();

 private:
  Status refuse(const std::string& what, std::string_view hint) const {
    return invalid_input(fmt::format("{}: error: {}\n  hint: {}", trace_.file, what, hint));
  }
  void warn(const std::string& what) {
    made_.warnings += fmt::format("{}: warning: {}\n", trace_.file, what);
  }
  bool has_shapes(const TracedOp& op) const { return op.inputs >= 0; }
  const TracedInputs& inputs_of(const TracedOp& op) const {
    return trace_.inputs[static_cast<std::size_t>(op.inputs)];
  }
  OpCost work(const TracedOp& op, bool backward) const {
    return has_shapes(op) ? work_of(*op.row, inputs_of(op), made_.device.precision, backward)
                          : OpCost();
  }
  Status name_device();
  void choose_precision();
  void group_steps();
  std::vector<TimedOp> timed_ops(const StepKind& kind) const;
  std::int64_t samples_by_shapes(const TracedStep& step) const;
  Result<std::int64_t> samples_of_model(const TracedStep& step) const;
  Status choose_kinds();
  void add_traced(const StepKind& kind);
  Status add_model(const StepKind& kind);
  void add_update();
  void report(const StepKind& kind);
  void warn_of_losses(const StepKind& kind);
  void warn_of_trace();

  const KinetoTrace& trace_;
  const Graph* model_;
  const KinetoOptions& options_;
  const std::vector<TracedStep> steps_;
  std::vector<StepKind> kinds_;
  std::map<std::int64_t, std::vector<TimedOp>> timed_;  // by samples
  OperatorPool pool_;
  KinetoProfile made_;
};

Status ProfileMaker::name_device() {
  DeviceProfile& device = made_.device;
  device.name = options_.kind;
  if (device.name.empty() && trace_.gpus.empty()) {
    return refuse("a trace does not name the processor",
                  "--kind NAME says what cluster.yaml calls it");
  }
  if (device.name.empty()) {
    for (const char c : trace_.gpus.front()) {
      const bool word = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.';
      device.name += word ? c : '-';
    }
  }
  if (!trace_.gpus.empty()) device.hardware.emplace_back("gpu", trace_.gpus.front());
  device.software = {{"agpcs", std::string(version())}, {"measured", "torch.profiler"}};
  return {};
}

/// Takes the type in which most products are computed.
void ProfileMaker::choose_precision() {
  std::map<DType, double> flops;
  for (const TracedStep& step : steps_) {
    for (const TracedOp& op : step.ops) {
      if (!has_shapes(op) || !bound_by_arithmetic(class_of(*op.row))) continue;
      const auto position = static_cast<std::size_t>(std::max<int>(op.row->inputs[0], 0));
      const auto& tensors = inputs_of(op).tensors;
      if (position >= tensors.size() || !tensors[position].type) continue;
      flops[*tensors[position].type] +=
          work_of(*op.row, inputs_of(op), Precision::kFp32, false).forward_flops;
    }
  }
  const auto most = std::max_element(
      flops.begin(), flops.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == flops.end()) return;
  Precision& precision = made_.device.precision;
  precision = most->first == DType::kFp16   ? Precision::kFp16
              : most->first == DType::kBf16 ? Precision::kBf16
              : trace_.tf32                 ? Precision::kTf32
                                            : Precision::kFp32;
  double all = 0;
  for (const auto& [type, each] : flops) all += each;
  if (most->second < (1 - kWorthTelling) * all) {
    warn(fmt::format(
        "products are computed in several types: {} of their FLOPs in {}, which the profile "
        "takes for all",
        percent(most->second / all), agpcs::name_of(most->first)));
  }
}

void ProfileMaker::group_steps() {
  std::map<std::vector<std::tuple<const AtenOperator*, int, int>>, StepKind> kinds;
  for (const TracedStep& step : steps_) {
    std::vector<std::tuple<const AtenOperator*, int, int>> key;
    for (const TracedOp& op : step.ops) key.emplace_back(op.row, op.inputs, op.module);
    if (!key.empty()) kinds[key].steps.push_back(&step);
  }
  for (auto& [key, kind] : kinds) kinds_.push_back(std::move(kind));
  // The order of the map is that of addresses.
  std::sort(kinds_.begin(), kinds_.end(),
            [](const StepKind& a, const StepKind& b) { return a.steps.front() < b.steps.front(); });
}

/// Returns the leading extent of what the first operator reads.
std::int64_t ProfileMaker::samples_by_shapes(const TracedStep& step) const {
  for (const TracedOp& op : step.ops) {
    if (!has_shapes(op)) continue;
    const std::vector<TracedInput>& tensors = inputs_of(op).tensors;
    const std::int8_t position = op.row->inputs[op.row->onnx == "Gather" ? 1 : 0];
    const auto data = static_cast<std::size_t>(std::max<int>(position, 0));
    if (data < tensors.size() && tensors[data].type && !tensors[data].dims.empty()) {
      return tensors[data].dims.front();
    }
  }
  return 0;
}

/// Returns the number of samples at which the model's products have as many FLOPs as the step's.
Result<std::int64_t> ProfileMaker::samples_of_model(const TracedStep& step) const {
  double traced = 0, one = 0, two = 0;
  for (const TracedOp& op : step.ops) {
    if (bound_by_arithmetic(class_of(*op.row))) traced += work(op, false).forward_flops;
  }
  for (OpId op = 0; op < static_cast<OpId>(model_->ops.size()); ++op) {
    if (!bound_by_arithmetic(class_of(model_->op(op)))) continue;
    one += op_cost(*model_, op, 1, made_.device.precision).forward_flops;
    two += op_cost(*model_, op, 2, made_.device.precision).forward_flops;
  }
  const double exact = two > one ? (traced - one) / (two - one) + 1 : 0;
  const double samples = std::round(exact);
  if (samples >= 1 && samples <= kMostSamples &&
      std::abs(exact - samples) <= kWorthTelling * samples) {
    return static_cast<std::int64_t>(samples);
  }
  return refuse(fmt::format("a step's products take {:.3g} MFLOPs, those of model '{}' {:.3g} a "
                            "sample: the trace is not of this model",
                            traced / kMega, model_->called(), (two - one) / kMega),
                "give the model that was traced, with the same --dim and --freeze as for "
                "agpcs-compile; or give none, for fits by class alone; --samples N says how many a "
                "step has where unknown operators do a part of the products");
}

Status ProfileMaker::choose_kinds() {
  group_steps();
  if (kinds_.empty()) {
    return refuse("no step calls an operator of PyTorch that is known here",
                  "trace whole training steps");
  }
  std::map<std::int64_t, StepKind> best;
  for (StepKind& kind : kinds_) {
    kind.samples = options_.samples > 0 ? options_.samples : samples_by_shapes(kind.first());
    if (options_.samples == 0 && model_ != nullptr) {
      AGPCS_TRY(kind.samples, samples_of_model(kind.first()));
    }
    if (kind.samples < 1) {
      return refuse("the shapes do not say how many samples a step has", "--samples N says it");
    }
    StepKind& most = best[kind.samples];
    if (kind.steps.size() > most.steps.size()) most = kind;
  }
  std::size_t used = 0;
  kinds_.clear();
  for (auto& [samples, kind] : best) {
    used += kind.steps.size();
    kinds_.push_back(std::move(kind));
  }
  if (used < steps_.size()) {
    warn(fmt::format("{} of {} steps are left out: their operators are not those of the others",
                     steps_.size() - used, steps_.size()));
  }
  return {};
}

std::vector<TimedOp> ProfileMaker::timed_ops(const StepKind& kind) const {
  std::vector<TimedOp> ops;
  for (std::size_t i = 0; i < kind.first().ops.size(); ++i) {
    const TracedOp& op = kind.first().ops[i];
    TimedOp timed;
    timed.op_class = class_of(*op.row);
    timed.onnx = op.row->onnx;
    timed.module = op.module;
    timed.forward = over(kind.steps, [&](const TracedStep& s) { return s.ops[i].forward; });
    timed.backward = over(kind.steps, [&](const TracedStep& s) { return s.ops[i].backward; });
    timed.work = work(op, timed.backward.seconds > 0);
    ops.push_back(timed);
  }
  const auto sum = [&](auto pass) {
    return over(kind.steps,
                [&](const TracedStep& step) {
                  double seconds = 0;
                  for (const TracedOp& op : step.ops) seconds += op.*pass;
                  return seconds;
                })
        .seconds;
  };
  make_whole(ops, &TimedOp::forward, sum(&TracedOp::forward));
  make_whole(ops, &TimedOp::backward, sum(&TracedOp::backward));
  return ops;
}

void ProfileMaker::add_traced(const StepKind& kind) {
  const std::vector<TimedOp>& ops = timed_[kind.samples] = timed_ops(kind);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const TracedOp& op = kind.first().ops[i];
    if (!has_shapes(op)) continue;
    pool_.add(fmt::format("aten::{}{}", op.row->name, inputs_of(op).text), ops[i].op_class,
              kind.samples, ops[i].work, ops[i].forward, ops[i].backward);
  }
}

/// Adds the model's operators, once as they are and once as a fused attention has them.
Status ProfileMaker::add_model(const StepKind& kind) {
  Profile traced;
  traced.devices.push_back(made_.device);
  AGPCS_TRY(const Calibrated fitted, fit_devices(traced));
  const KindFit& fit = fitted.cluster.kinds.front().fit;
  const Precision precision = made_.device.precision;
  const std::vector<TimedOp>& ops = timed_[kind.samples];
  if (ops.size() > kMostOperators * model_->ops.size()) {
    return refuse(fmt::format("a step has {} operators, model '{}' {}", ops.size(),
                              model_->called(), model_->ops.size()),
                  kAccumulating);
  }
  const ModelTimes times = match_model(*model_, kind.samples, precision, fit, ops);
  if (times.found_seconds < kSameModel * times.seconds) {
    return refuse(fmt::format("{} of {} operators of model '{}' are in the trace, with {} of its "
                              "time: the trace is not "
                              "of this model",
                              times.found, times.operators, model_->called(),
                              percent(times.found_seconds / times.seconds)),
                  kAccumulating);
  }
  made_.report += fmt::format(
      "  model {}: {} of {} operators are in the trace, with {} of its time\n", model_->called(),
      times.found, times.operators, percent(times.found_seconds / times.seconds));
  pool_.add(*model_, kind.samples, precision, times.forward, times.backward);
  Graph fused = *model_;
  fuse_attention(fused);
  const ModelTimes again = match_model(fused, kind.samples, precision, fit, ops);
  for (const FusedAttention& attention : fused.fused) {
    for (const OpId op : attention.ops) {
      const auto i = static_cast<std::size_t>(op);
      pool_.add(op_signature(fused, op), class_of(fused.op(op)), kind.samples,
                op_cost(fused, op, kind.samples, precision), again.forward[i], again.backward[i]);
    }
  }
  return {};
}

void ProfileMaker::add_update() {
  const std::vector<const TracedStep*>& steps = kinds_.back().steps;
  const TracedStep& step = kinds_.back().first();
  if (model_ == nullptr) return;
  if (step.optimizer.empty()) {
    return warn("no optimizer's step was traced; the profile lacks the update");
  }
  MeasuredUpdate update;
  if (options_.optimizer) {
    update.optimizer = optimizer_name(*options_.optimizer);
  } else if (step.optimizer == "SGD") {
    update.optimizer = step.momentum ? "sgd momentum" : "sgd";
  } else if (step.optimizer == "Adam" || step.optimizer == "AdamW") {
    update.optimizer = "adam";
  } else {
    return warn(
        fmt::format("the update by '{}' is left out: --optimizer says which optimizer is like it",
                    step.optimizer));
  }
  update.elements = model_->parameter_elements();
  update.tensors = static_cast<std::int64_t>(model_->parameters().size());
  update.update = rounded(over(steps, [](const TracedStep& s) { return s.update; }));
  update.begin = rounded(over(steps, [](const TracedStep& s) { return s.begin; }));
  made_.device.updates.push_back(update);
}

void ProfileMaker::warn_of_losses(const StepKind& kind) {
  std::map<std::string, double> unknown;
  double all = 0, wall = 0, busy = 0;
  for (const TracedStep* step : kind.steps) {
    for (const auto& [name, seconds] : step->unknown) unknown[name] += seconds;
    busy += step->busy();
    wall += step->wall;
  }
  std::vector<std::pair<double, std::string>> most;
  for (const auto& [name, seconds] : unknown) {
    all += seconds;
    most.emplace_back(-seconds, name);
  }
  std::sort(most.begin(), most.end());
  if (all > 0) {
    std::string names;
    for (std::size_t i = 0; i < std::min(most.size(), kNamed); ++i) {
      names += fmt::format("{}{} ({})", i == 0 ? "" : ", ", most[i].second,
                           percent(-most[i].first / busy));
    }
    if (most.size() > kNamed) names += fmt::format(" and {} more", most.size() - kNamed);
    const std::string what = fmt::format(
        "operators that no class is known of took {} of a step of {}; the profile lacks them: {}",
        percent(all / busy), plural(kind.samples, "sample"), names);
    if (all > kWorthTelling * busy) {
      warn(what);
    } else {
      made_.report += "  " + what + "\n";
    }
  }
  const bool has_backward = std::any_of(timed_[kind.samples].begin(), timed_[kind.samples].end(),
                                        [](const TimedOp& op) { return op.backward.seconds > 0; });
  if (!has_backward) {
    warn(fmt::format("no backward pass was traced in a step of {}; a plan's step will be too short",
                     plural(kind.samples, "sample")));
  }
  if (trace_.on_gpu && busy < (1 - kWorthTelling) * wall) {
    warn(fmt::format(
        "the GPU has no work in {} of a step of {}: it waits for the host, which no profile knows; "
        "a plan's step will be shorter than the job's",
        percent(1 - busy / wall), plural(kind.samples, "sample")));
  }
}

/// Names what the profile lacks of the trace as a whole.
void ProfileMaker::warn_of_trace() {
  const double kernels = trace_.device_before.back() + trace_.unlinked;
  if (trace_.unlinked > kWorthTelling * kernels) {
    warn(
        fmt::format("kernels that no call in the trace launched took {} of the GPU's time; the "
                    "profile lacks them",
                    percent(trace_.unlinked / kernels)));
  }
  if (trace_.communication > 0) {
    warn(
        fmt::format("{} of NCCL's kernels are left out: a trace does not say what links are "
                    "worth; agpcs-profile --cluster measures them",
                    figure(trace_.communication, "s")));
  }
  if (trace_.kernel_devices > 1) {
    warn(fmt::format("kernels of {} GPUs are taken for those of one", trace_.kernel_devices));
  }
  if (model_ != nullptr && !trace_.has_modules) {
    warn(
        "the trace has no modules: operators of the model are found by their order and work alone; "
        "record it with with_stack=True");
  }
}

void ProfileMaker::report(const StepKind& kind) {
  const auto median = [&](auto value) { return over(kind.steps, value).seconds; };
  double forward = 0, backward = 0;
  for (const TimedOp& op : timed_[kind.samples]) {
    forward += op.forward.seconds;
    backward += op.backward.seconds;
  }
  const double wall = median([](const TracedStep& s) { return s.wall; });
  const double busy = median([](const TracedStep& s) { return s.busy(); });
  made_.report += fmt::format(
      "{}: {} of {} in {}: forward {}, backward {}, update {}, between operators {}\n", trace_.file,
      plural(static_cast<std::int64_t>(kind.steps.size()), "step"), plural(kind.samples, "sample"),
      figure(wall, "s"), figure(forward, "s"), figure(backward, "s"),
      figure(median([](const TracedStep& s) { return s.update + s.begin; }), "s"),
      figure(std::max(wall - busy, 0.0), "s"));
}

Result<KinetoProfile> ProfileMaker::make() {
  AGPCS_RETURN_IF_ERROR(name_device());
  choose_precision();
  AGPCS_RETURN_IF_ERROR(choose_kinds());
  for (const StepKind& kind : kinds_) add_traced(kind);
  made_.device.operators = pool_.operators();
  for (const StepKind& kind : kinds_) {
    report(kind);
    warn_of_losses(kind);
    if (model_ != nullptr) AGPCS_RETURN_IF_ERROR(add_model(kind));
  }
  made_.device.operators = pool_.operators();
  if (model_ != nullptr) made_.device.models = {model_->called()};
  add_update();
  warn_of_trace();
  return std::move(made_);
}

}  // namespace

Result<KinetoProfile> profile_of_trace(const KinetoTrace& trace, const Graph* model,
                                       const KinetoOptions& options) {
  return ProfileMaker(trace, model, options).make();
}

}  // namespace agpcs
