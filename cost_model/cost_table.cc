// SPDX-License-Identifier: Apache-2.0
#include "cost_model/cost_table.h"

#include "ir/check.h"
#include "ir/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>

namespace agpcs {
namespace {

bool bound_by_arithmetic(OpClass op_class) {
  return op_class == OpClass::kConvolution || op_class == OpClass::kMatmul;
}

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

Status no_peak(const DeviceKind& kind, const std::string& precision) {
  std::string has;
  for (const auto& [name, flops] : kind.peak_flops) has += (has.empty() ? "" : ", ") + name;
  return invalid_input(
      fmt::format("device kind '{}' has no peak for precision '{}'; it has: {}\n"
                  "  hint: add {} to its peak, or train in a precision that every kind has",
                  kind.name, precision, has.empty() ? "none" : has, precision));
}

/// Bytes that an optimizer's step reads and writes per parameter. Arithmetic is in fp32; in half
/// precision the gradient is read in 2 bytes and the parameter's 2-byte copy is written too.
double update_bytes_of(const Training& training) {
  const bool half = training.precision == "fp16" || training.precision == "bf16";
  const double parameter = half ? 4 + 4 + 2 : 4 + 4;
  const double gradient = half ? 2 : 4;
  const bool adam = training.optimizer.kind == "adam";
  const double state = adam ? 2 * (4 + 4) : training.optimizer.momentum != 0 ? 4 + 4 : 0;
  return parameter + gradient + state;
}

OpCost sum(const OpCost& a, double factor, const OpCost& b) {
  return {a.forward_flops + factor * b.forward_flops, a.backward_flops + factor * b.backward_flops,
          a.forward_bytes + factor * b.forward_bytes, a.backward_bytes + factor * b.backward_bytes};
}

bool equal(const OpCost& a, const OpCost& b) {
  return a.forward_flops == b.forward_flops && a.backward_flops == b.backward_flops &&
         a.forward_bytes == b.forward_bytes && a.backward_bytes == b.backward_bytes;
}

}  // namespace

// Where the defaults come from. Products: the largest reach 90% of a V100's peak with cuBLAS; those
// of a layer are smaller, and their gradients less regular. Convolutions: chosen such that
// ResNet-50 trains as fast as NVIDIA publishes (DeepLearningExamples, PyTorch ResNet-50 v1.5, one
// GPU: V100 fp32 367 and mixed 1200 images/s, A100 tf32 938 and mixed 2470), which a test holds to
// 15%; tensor cores reach a smaller part of a far higher peak, tf32 in particular. Memory:
// streaming kernels reach 83% of a V100's 900 GB/s (Jia et al., "Dissecting the NVIDIA Volta GPU
// Architecture via Microbenchmarking", 2018); a class that reads twice, reduces or strides gets
// less, one that gathers rows least.
double default_efficiency(OpClass op_class, std::string_view precision) {
  switch (op_class) {
    case OpClass::kConvolution:
      return precision == "fp32" ? 0.80 : precision == "tf32" ? 0.25 : 0.40;
    case OpClass::kMatmul:
      return precision == "fp32" ? 0.80 : 0.55;
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

Result<CostTable::Roofline> CostTable::roofline_of(const DeviceKind& kind,
                                                   const std::string& precision) {
  AGPCS_RETURN_IF_ERROR(check_efficiencies(kind));
  const auto peak = kind.peak_flops.find(precision);
  if (peak == kind.peak_flops.end()) return no_peak(kind, precision);
  Roofline roofline;
  roofline.used = true;
  roofline.launch_overhead = kind.launch_overhead;
  roofline.begin_per_element = kind.fit.begin_per_element;
  for (int i = 0; i < kOpClassCount; ++i) {
    const auto op_class = static_cast<OpClass>(i);
    const auto given = kind.efficiency.find(std::string(name_of(op_class)));
    const double efficiency =
        given != kind.efficiency.end() ? given->second : default_efficiency(op_class, precision);
    const bool arithmetic = bound_by_arithmetic(op_class);
    const auto index = static_cast<std::size_t>(i);
    roofline.flops[index] = peak->second * (arithmetic ? efficiency : 1);
    roofline.bandwidth[index] = kind.memory_bandwidth * (arithmetic ? 1 : efficiency);
  }
  return roofline;
}

Result<CostTable> CostTable::make(const Graph& graph, const Cluster& cluster,
                                  const Training& training) {
  CostTable table;
  table.graph_ = &graph;
  table.precision_ = training.precision;
  table.update_bytes_ = update_bytes_of(training);
  table.kinds_.resize(cluster.kinds.size());
  for (const Device& device : cluster.devices) {
    const auto kind = static_cast<std::size_t>(device.kind);
    if (table.kinds_[kind].used) continue;
    AGPCS_TRY(table.kinds_[kind], roofline_of(cluster.kinds[kind], training.precision));
  }
  table.work_.reserve(graph.ops.size());
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    table.work_.push_back(table.work_of(op));
  }
  return table;
}

CostTable::Work CostTable::work_of(OpId op) const {
  Work work;
  work.op_class = class_of(graph_->op(op));
  const auto cost = [&](std::int64_t samples) { return op_cost(*graph_, op, samples, precision_); };
  const OpCost one = cost(1);
  work.per_sample = sum(cost(2), -1, one);
  work.fixed = sum(one, -1, work.per_sample);
  // Costs are sums and products of extents: small integers in doubles, so a straight line through
  // the first two points meets the others exactly, or the cost is not on a line.
  work.affine = equal(cost(3), sum(work.fixed, 3, work.per_sample)) &&
                equal(cost(64), sum(work.fixed, 64, work.per_sample));
  return work;
}

OpCost CostTable::cost_at(OpId op, std::int64_t samples) const {
  const Work& work = work_[static_cast<std::size_t>(op)];
  if (!work.affine) return op_cost(*graph_, op, samples, precision_);
  return sum(work.fixed, static_cast<double>(samples), work.per_sample);
}

OpSeconds CostTable::seconds(int kind, OpId op, std::int64_t samples) const {
  const Roofline& roofline = kinds_[static_cast<std::size_t>(kind)];
  AGPCS_CHECK(roofline.used, "kind {} has no device", kind);
  const OpClass op_class = work_[static_cast<std::size_t>(op)].op_class;
  if (op_class == OpClass::kView) return {};
  const OpCost cost = cost_at(op, samples);
  const auto pass = [&](double flops, double bytes) {
    if (flops == 0 && bytes == 0) return 0.0;
    const auto c = static_cast<std::size_t>(op_class);
    return std::max(flops / roofline.flops[c], bytes / roofline.bandwidth[c]) +
           roofline.launch_overhead;
  };
  return {pass(cost.forward_flops, cost.forward_bytes),
          pass(cost.backward_flops, cost.backward_bytes)};
}

double CostTable::update_seconds(int kind, std::int64_t elements, std::int64_t tensors) const {
  const Roofline& roofline = kinds_[static_cast<std::size_t>(kind)];
  AGPCS_CHECK(roofline.used, "kind {} has no device", kind);
  const double bandwidth = roofline.bandwidth[static_cast<std::size_t>(OpClass::kElementwise)];
  return update_bytes_ * static_cast<double>(elements) / bandwidth +
         roofline.launch_overhead * static_cast<double>(tensors);
}

double CostTable::begin_seconds(int kind, std::int64_t elements) const {
  return kinds_[static_cast<std::size_t>(kind)].begin_per_element * static_cast<double>(elements);
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

}  // namespace agpcs
