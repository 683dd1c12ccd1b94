// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/cost_table.h"

#include "ir/base/check.h"
#include "ir/base/diagnostics.h"
#include "ir/graph/op_signature.h"
#include "ir/plan/choices.h"
#include "ir/strategy/state_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace agpcs {
namespace {

std::vector<std::string> class_names() {
  std::vector<std::string> names;
  names.reserve(kOpClassCount);
  for (int i = 0; i < kOpClassCount; ++i) names.emplace_back(name_of(static_cast<OpClass>(i)));
  return names;
}

Status check_efficiencies(const DeviceKind& kind) {
  const std::vector<std::string> names = class_names();
  for (const auto& [name, fraction] : kind.efficiency) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return invalid_input(
          fmt::format("device kind '{}': efficiency names operator class '{}', which there is not\n"
                      "  hint: {}",
                      kind.name, name, did_you_mean(name, names, "classes")));
    }
    if (!(fraction > 0 && fraction <= 1)) {
      return invalid_input(
          fmt::format("device kind '{}': efficiency of '{}' is {}, which is not in (0, 1]",
                      kind.name, name, fraction));
    }
  }
  return {};
}

Status no_peak(const DeviceKind& kind, Precision precision) {
  std::string has;
  for (const auto& [known, flops] : kind.peak_flops) {
    has += fmt::format("{}{}", has.empty() ? "" : ", ", name_of(known));
  }
  const std::string_view wanted = name_of(precision);
  return invalid_input(
      fmt::format("device kind '{}' has no peak for precision '{}'; it has: {}\n"
                  "  hint: add {} to its peak, or train in a precision that every kind has",
                  kind.name, wanted, has.empty() ? "none" : has, wanted));
}

OpCost sum(const OpCost& a, double factor, const OpCost& b) {
  return {a.forward_flops + factor * b.forward_flops, a.backward_flops + factor * b.backward_flops,
          a.forward_bytes + factor * b.forward_bytes, a.backward_bytes + factor * b.backward_bytes};
}

bool equal(const OpCost& a, const OpCost& b) {
  return a.forward_flops == b.forward_flops && a.backward_flops == b.backward_flops &&
         a.forward_bytes == b.forward_bytes && a.backward_bytes == b.backward_bytes;
}

/// Returns the seconds of a pass that has work.
double seconds_of(const PassFit& fit, double flops, double bytes) {
  return fit.overhead + flops * fit.per_flop + bytes * fit.per_byte;
}

Status not_covered(const DeviceKind& kind, const Profile& profile, const Graph& graph) {
  const DeviceProfile& device = *profile.find_device(kind.profile.entry);
  return invalid_input(fmt::format(
      "{}: error: device '{}' has none of the operators of model '{}', which is to be "
      "planned for kind '{}'; it was profiled with: {}\n"
      "  hint: profile this model, too, and merge the files (agpcs-profile --merge)",
      profile.file, device.name, graph.called(), kind.name, fmt::join(device.models, ", ")));
}

Status not_measured(const DeviceKind& kind, const Op& op) {
  return invalid_input(fmt::format(
      "device kind '{}' has no measurement of operator '{}', and the times of an agpcs.Measured "
      "are "
      "known by measurement alone\n"
      "  hint: plan with the cluster file and the profile that were written with this model",
      kind.name, op.name));
}

Status other_precision(const DeviceKind& kind, const Profile& profile, std::string_view has,
                       std::string_view wanted) {
  return invalid_input(
      fmt::format("{}: error: device '{}' of kind '{}' was profiled in {}, the training is in {}\n"
                  "  hint: profile in {}, or train in {}",
                  profile.file, kind.profile.entry, kind.name, has, wanted, wanted, has));
}

/// Returns true when `calibrate` has processed the kind: at least one class takes time.
bool is_calibrated(const KindFit& fit) {
  return std::any_of(fit.classes.begin(), fit.classes.end(), [](const KindFit::Class& c) {
    return c.forward.overhead + c.forward.per_flop + c.forward.per_byte > 0;
  });
}

}  // namespace

bool bound_by_arithmetic(OpClass op_class) {
  return op_class == OpClass::kConvolution || op_class == OpClass::kMatmul;
}

double clipping_bytes(Precision precision) {
  return size_of(entry_of(kPrecisions, precision).held) == 2 ? 3 * 2 : 3 * 4;
}

// Sources of the defaults. Matrix products: the largest reach 90% of a V100's peak with cuBLAS;
// those of a layer are smaller, and their gradients less regular. Convolutions: chosen such that
// ResNet-50 trains as fast as NVIDIA publishes (DeepLearningExamples, PyTorch ResNet-50 v1.5, one
// GPU: V100 fp32 367 and mixed 1200 images/s, A100 tf32 938 and mixed 2470), which a test holds to
// 15%; tensor cores reach a smaller part of a far higher peak, tf32 in particular. Memory:
// streaming kernels reach 83% of a V100's 900 GB/s (Jia et al., "Dissecting the NVIDIA Volta GPU
// Architecture via Microbenchmarking", 2018); a class that reads twice, reduces or strides gets
// less, and one that gathers rows gets least.
double default_efficiency(OpClass op_class, Precision precision) {
  switch (op_class) {
    case OpClass::kConvolution:
      return precision == Precision::kFp32 ? 0.80 : precision == Precision::kTf32 ? 0.25 : 0.40;
    case OpClass::kMatmul:
      return precision == Precision::kFp32 ? 0.80 : 0.55;
    case OpClass::kElementwise:
      return 0.80;
    case OpClass::kNormalization:
    case OpClass::kSoftmax:
    case OpClass::kReduction:
      return 0.70;
    case OpClass::kPooling:
    case OpClass::kDataMovement:
      return 0.65;
    case OpClass::kEmbedding:
      return 0.50;
    case OpClass::kView:
      return 1;
  }
  AGPCS_CHECK(false, "operator class {}", static_cast<int>(op_class));
}

CostTable::Roofline CostTable::roofline_of(const DeviceKind& kind, Precision precision) {
  Roofline roofline;
  roofline.launch_overhead = kind.launch_overhead;
  for (int i = 0; i < kOpClassCount; ++i) {
    const auto op_class = static_cast<OpClass>(i);
    const auto given = kind.efficiency.find(std::string(name_of(op_class)));
    const double efficiency =
        given != kind.efficiency.end() ? given->second : default_efficiency(op_class, precision);
    const bool arithmetic = bound_by_arithmetic(op_class);
    const auto index = static_cast<std::size_t>(i);
    roofline.flops[index] = kind.peak_flops.at(precision) * (arithmetic ? efficiency : 1);
    roofline.bandwidth[index] = kind.memory_bandwidth * (arithmetic ? 1 : efficiency);
  }
  return roofline;
}

Result<CostTable> CostTable::make(const Graph& graph, const Cluster& cluster,
                                  const Training& training, bool of_parts) {
  CostTable table;
  table.graph_ = &graph;
  table.of_parts_ = of_parts;
  table.precision_ = training.precision;
  table.optimizer_ = optimizer_name(training.optimizer);
  table.clips_ = training.optimizer.clips();
  table.state_bytes_ = state_bytes(training);
  const auto operators = static_cast<OpId>(graph.ops.size());
  table.work_.reserve(graph.ops.size());
  for (OpId op = 0; op < operators; ++op) table.work_.push_back(table.work_of(op));
  std::vector<bool> used(cluster.kinds.size());
  for (const Device& device : cluster.devices) used[static_cast<std::size_t>(device.kind)] = true;
  std::vector<std::string> signatures;
  for (std::size_t k = 0; k < cluster.kinds.size(); ++k) {
    const DeviceKind& kind = cluster.kinds[k];
    if (used[k] && kind.profile.given() && signatures.empty()) {
      signatures.reserve(graph.ops.size());
      for (OpId op = 0; op < operators; ++op) signatures.push_back(op_signature(graph, op));
    }
    table.kinds_.emplace_back();
    if (used[k]) {
      AGPCS_TRY(table.kinds_.back(), table.kind_of(kind, cluster, training.batch, signatures));
      AGPCS_RETURN_IF_ERROR(table.check_measured(kind, table.kinds_.back()));
      table.kinds_.back().host_link = kind.host_link;
    }
  }
  return table;
}

Result<CostTable::Kind> CostTable::kind_of(const DeviceKind& from, const Cluster& cluster,
                                           std::int64_t batch,
                                           const std::vector<std::string>& signatures) const {
  AGPCS_RETURN_IF_ERROR(check_efficiencies(from));
  Kind kind;
  kind.used = true;
  kind.begin_per_element = from.fit.begin_per_element;
  kind.datasheet = from.peak_flops.contains(precision_) && from.memory_bandwidth > 0;
  if (kind.datasheet) kind.roofline = roofline_of(from, precision_);
  if (from.profile.given()) {
    const Profile& profile = cluster.profiles[static_cast<std::size_t>(from.profile.profile)];
    AGPCS_RETURN_IF_ERROR(add_profile(from, profile, signatures, kind));
    const bool measured_any = !profile.find_device(from.profile.entry)->operators.empty();
    add_corrections(from, batch, signatures, measured_any, kind);
  } else if (!from.peak_flops.contains(precision_)) {
    return no_peak(from, precision_);
  } else {
    add_kernels(from, batch, kind);
  }
  add_update(from, kind);
  return kind;
}

Status CostTable::add_profile(const DeviceKind& from, const Profile& profile,
                              const std::vector<std::string>& signatures, Kind& kind) const {
  const DeviceProfile* device = profile.find_device(from.profile.entry);
  AGPCS_CHECK(device != nullptr && is_calibrated(from.fit), "kind '{}' is not calibrated",
              from.name);
  if (device->precision != precision_) {
    return other_precision(from, profile, name_of(device->precision), name_of(precision_));
  }
  kind.profiled = true;
  kind.classes = from.fit.classes;
  std::unordered_map<std::string_view, const MeasuredOperator*> measured;
  for (const MeasuredOperator& op : device->operators) {
    if (!op.points.empty()) measured.emplace(op.signature, &op);
  }
  std::unordered_map<std::string_view, int> curves;
  kind.curve_of.assign(signatures.size(), -1);
  bool covered = false;
  for (OpId op = 0; op < static_cast<OpId>(signatures.size()); ++op) {
    const auto index = static_cast<std::size_t>(op);
    const auto found = measured.find(signatures[index]);
    if (found == measured.end()) continue;
    const auto [curve, added] = curves.emplace(found->first, static_cast<int>(kind.curves.size()));
    if (added) kind.curves.push_back(curve_of(*found->second, kind, op));
    kind.curve_of[index] = curve->second;
    covered = covered || has_work(op);
  }
  kind.measured_curves = kind.curves.size();
  // A profile that names no models measured operators by themselves, for the fits.
  if (covered || device->models.empty() || of_parts_) return {};
  return not_covered(from, profile, *graph_);
}

Status CostTable::check_measured(const DeviceKind& from, const Kind& kind) const {
  for (OpId op = 0; op < static_cast<OpId>(graph_->ops.size()); ++op) {
    if (!is_measured_only(graph_->op(op))) continue;
    if (curve(kind, op) == nullptr) return not_measured(from, graph_->op(op));
  }
  return {};
}

OperatorCurve CostTable::curve_of(const MeasuredOperator& measured, const Kind& kind,
                                  OpId op) const {
  std::vector<OperatorCurve::Point> points;
  points.reserve(measured.points.size() + 1);
  for (const MeasuredOperator::Point& point : measured.points) {
    points.push_back({point.samples, {point.forward.seconds, point.backward.seconds}});
  }
  if (points.size() == 1) {
    const OperatorCurve::Point& only = points.front();
    const OpSeconds here = estimate(kind, op, only.samples);
    const OpSeconds twice = estimate(kind, op, 2 * only.samples);
    const auto grown = [](double seconds, double from, double to) {
      return from > 0 ? seconds * (to / from) : seconds;
    };
    points.push_back({2 * only.samples,
                      {grown(only.seconds.forward, here.forward, twice.forward),
                       grown(only.seconds.backward, here.backward, twice.backward)}});
  }
  return OperatorCurve(points);
}

CostTable::Work CostTable::work_of(OpId op) const {
  Work work;
  work.op_class = class_of(graph_->op(op));
  const auto cost = [&](std::int64_t samples) { return op_cost(*graph_, op, samples, precision_); };
  const OpCost one = cost(1);
  work.per_sample = sum(cost(2), -1, one);
  work.fixed = sum(one, -1, work.per_sample);
  // Costs are sums and products of extents, which are small integers in doubles. A straight line
  // through the first two points therefore meets the others exactly, or the cost is not a line.
  work.affine = equal(cost(3), sum(work.fixed, 3, work.per_sample)) &&
                equal(cost(64), sum(work.fixed, 64, work.per_sample));
  return work;
}

OpCost CostTable::cost_at(OpId op, std::int64_t samples) const {
  const Work& work = work_[static_cast<std::size_t>(op)];
  if (!work.affine) return op_cost(*graph_, op, samples, precision_);
  return sum(work.fixed, static_cast<double>(samples), work.per_sample);
}

bool CostTable::has_work(OpId op) const {
  if (work_[static_cast<std::size_t>(op)].op_class == OpClass::kView) return false;
  const OpCost cost = cost_at(op, 1);
  return cost.forward_flops + cost.forward_bytes + cost.backward_flops + cost.backward_bytes > 0;
}

const CostTable::Kind& CostTable::used_kind(int kind) const {
  const Kind& used = kinds_[static_cast<std::size_t>(kind)];
  AGPCS_CHECK(used.used, "kind {} has no device", kind);
  return used;
}

OpSeconds CostTable::estimate(const Kind& kind, OpId op, std::int64_t samples) const {
  const OpClass op_class = work_[static_cast<std::size_t>(op)].op_class;
  if (op_class == OpClass::kView) return {};
  const OpCost cost = cost_at(op, samples);
  const auto c = static_cast<std::size_t>(op_class);
  const auto pass = [&](double flops, double bytes, const PassFit& fit) {
    if (flops == 0 && bytes == 0) return 0.0;
    if (kind.profiled && (fit.fitted || !kind.datasheet)) return seconds_of(fit, flops, bytes);
    return std::max(flops / kind.roofline.flops[c], bytes / kind.roofline.bandwidth[c]) +
           kind.roofline.launch_overhead;
  };
  return {pass(cost.forward_flops, cost.forward_bytes, kind.classes[c].forward),
          pass(cost.backward_flops, cost.backward_bytes, kind.classes[c].backward)};
}

const OperatorCurve* CostTable::curve(const Kind& kind, OpId op) {
  if (kind.curve_of.empty()) return nullptr;
  const int index = kind.curve_of[static_cast<std::size_t>(op)];
  return index < 0 ? nullptr : &kind.curves[static_cast<std::size_t>(index)];
}

OpSeconds CostTable::seconds(int kind, OpId op, std::int64_t samples) const {
  const Kind& of = used_kind(kind);
  if (const OperatorCurve* const known = curve(of, op)) return known->at(samples);
  return estimate(of, op, samples);
}

bool CostTable::is_measured(int kind, OpId op) const {
  const Kind& of = used_kind(kind);
  if (!of.profiled) return false;
  const int index = of.curve_of[static_cast<std::size_t>(op)];
  return index >= 0 && static_cast<std::size_t>(index) < of.measured_curves;
}

/// Returns true when the operator's cost is a line in the samples without negative parts.
bool CostTable::rises(OpId op) const {
  const Work& work = work_[static_cast<std::size_t>(op)];
  const auto positive = [](const OpCost& cost) {
    return std::min({cost.forward_flops, cost.forward_bytes, cost.backward_flops,
                     cost.backward_bytes}) >= 0;
  };
  return work.affine && positive(work.fixed) && positive(work.per_sample);
}

// A pass of n samples takes overhead + r(n), where r is the larger of lines (or one line, a fit)
// that are not negative at 0. So r(n) / n does not rise with n: r(n) >= n r(most) / most.
OpFloor CostTable::floor(int kind, OpId op, std::int64_t most) const {
  const Kind& of = used_kind(kind);
  const auto index = static_cast<std::size_t>(op);
  if (const OperatorCurve* const known = curve(of, op)) return known->floor(most);
  if (!rises(op)) return {};
  const OpSeconds at_most = estimate(of, op, most);
  const KindFit::Class& fits = of.classes[static_cast<std::size_t>(work_[index].op_class)];
  const auto samples = static_cast<double>(most);
  const auto overhead_of = [&](double seconds, const PassFit& fit) {
    if (seconds == 0) return 0.0;
    return of.profiled && (fit.fitted || !of.datasheet) ? fit.overhead
                                                        : of.roofline.launch_overhead;
  };
  OpFloor floor;
  floor.least_per_sample = {at_most.forward / samples, at_most.backward / samples};
  floor.fixed = {overhead_of(at_most.forward, fits.forward),
                 overhead_of(at_most.backward, fits.backward)};
  floor.per_sample = {(at_most.forward - floor.fixed.forward) / samples,
                      (at_most.backward - floor.fixed.backward) / samples};
  return floor;
}

// A pass without a curve that rises is one line, or the larger of two, which meet at some number of
// samples. All numbers are tried where it does not, as of a sum whose operand is as large at 1
// sample.
OpRange CostTable::range(int kind, OpId op, std::int64_t most) const {
  const Kind& of = used_kind(kind);
  if (const OperatorCurve* const known = curve(of, op)) return known->range(most);
  const Work& work = work_[static_cast<std::size_t>(op)];
  constexpr std::int64_t kMostTried = 4096;
  if (!rises(op)) {
    if (most > kMostTried) return {};
    std::vector<OpSeconds> all;
    for (std::int64_t samples = 1; samples <= most; ++samples) {
      all.push_back(estimate(of, op, samples));
    }
    return range_of(all);
  }
  const Roofline& roofs = of.roofline;
  const auto c = static_cast<std::size_t>(work.op_class);
  std::vector<OpSeconds> seconds = {estimate(of, op, 1), estimate(of, op, most)};
  const auto add_meeting = [&](double OpCost::*flops, double OpCost::*bytes) {
    const auto apart = [&](const OpCost& cost) {
      return cost.*flops / roofs.flops[c] - cost.*bytes / roofs.bandwidth[c];
    };
    const double meet = -apart(work.fixed) / apart(work.per_sample);
    if (!(meet > 1 && meet < static_cast<double>(most))) return;
    const auto before = static_cast<std::int64_t>(meet);
    seconds.push_back(estimate(of, op, before));
    seconds.push_back(estimate(of, op, std::min(before + 1, most)));
  };
  if (of.datasheet && work.op_class != OpClass::kView) {
    add_meeting(&OpCost::forward_flops, &OpCost::forward_bytes);
    add_meeting(&OpCost::backward_flops, &OpCost::backward_bytes);
  }
  return range_of(seconds);
}

// Operators with curves: passes of n_i samples take at least n_i x least each, and at least fixed +
// per_sample x n_i, with one or more passes. Others: r(n) / n and overhead / n do not rise with n,
// so one pass of all samples is the cheapest.
OpSeconds CostTable::least_seconds(int kind, OpId op, std::int64_t samples,
                                   std::int64_t most) const {
  const Kind& of = used_kind(kind);
  if (curve(of, op) != nullptr) {
    const OpFloor low = floor(kind, op, most);
    const auto n = static_cast<double>(samples);
    return {
        std::max(n * low.least_per_sample.forward, low.fixed.forward + n * low.per_sample.forward),
        std::max(n * low.least_per_sample.backward,
                 low.fixed.backward + n * low.per_sample.backward)};
  }
  return rises(op) ? estimate(of, op, samples) : OpSeconds();
}

double CostTable::speed(int kind, std::int64_t samples) const {
  double total = 0;
  for (OpId op = 0; op < static_cast<OpId>(work_.size()); ++op) {
    const OpSeconds s = seconds(kind, op, samples);
    total += s.forward + s.backward;
  }
  AGPCS_CHECK(total > 0, "graph '{}' has no work", graph_->name);
  return static_cast<double>(samples) / total;
}

Coverage CostTable::coverage(int kind, std::int64_t samples) const {
  const Kind& of = used_kind(kind);
  Coverage coverage;
  double total = 0, measured = 0;
  for (OpId op = 0; op < static_cast<OpId>(work_.size()); ++op) {
    const auto index = static_cast<std::size_t>(op);
    const OpSeconds s = seconds(kind, op, samples);
    if (s.forward + s.backward == 0) continue;
    total += s.forward + s.backward;
    ++coverage.operators;
    if (of.profiled && of.curve_of[index] >= 0) {
      const bool corrected = static_cast<std::size_t>(of.curve_of[index]) >= of.measured_curves;
      measured += corrected ? 0 : s.forward + s.backward;
      ++(corrected ? coverage.fitted : coverage.measured);
      continue;
    }
    const PassFit& fit = of.classes[static_cast<std::size_t>(work_[index].op_class)].forward;
    ++(of.profiled && (fit.fitted || !of.datasheet) ? coverage.fitted : coverage.datasheet);
  }
  if (total > 0) coverage.measured_fraction_of_seconds = measured / total;
  return coverage;
}

}  // namespace agpcs
