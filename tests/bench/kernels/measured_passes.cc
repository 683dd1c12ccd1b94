// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/kernels/measured_passes.h"

#include "cost_model/step/cost_table.h"
#include "ir/base/check.h"
#include "ir/graph/op_signature.h"
#include "ir/plan/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string_view>

namespace agpcs {
namespace {

constexpr std::size_t kNames = 4;  // columns before the time: device, precision, class, pass

/// Takes the columns of names from the start of a row.
std::array<std::string, kNames> take_names(std::string& row) {
  std::array<std::string, kNames> names;
  for (std::string& name : names) {
    const std::size_t comma = std::min(row.find(','), row.size());
    name = row.substr(0, comma);
    row.erase(0, comma + 1);
  }
  return names;
}

bool is_same(const MeasuredPass& a, const MeasuredPass& b) {
  return a.set.device == b.set.device && a.precision == b.precision && a.backward == b.backward &&
         a.set.kernel_class == b.set.kernel_class;
}

/// Reads a row as a pass with one kernel.
std::optional<MeasuredPass> read_row(std::string row) {
  const auto [device, precision, kernel_class, pass] = take_names(row);
  const std::optional<Precision> known = value_named(kPrecisions, precision);
  MeasuredPass read = {{device, kernel_class, {measured_kernel(row)}}};
  if (!known || !is_measured_device(device) || !is_measured_class(kernel_class) ||
      (pass != "forward" && pass != "backward") || read.set.kernels.front().seconds <= 0) {
    return std::nullopt;
  }
  read.precision = *known;
  read.backward = pass == "backward";
  return read;
}

void add(const MeasuredPass& one, std::vector<MeasuredPass>& passes) {
  const auto same = std::find_if(passes.begin(), passes.end(),
                                 [&](const MeasuredPass& pass) { return is_same(pass, one); });
  if (same == passes.end()) {
    passes.push_back(one);
  } else {
    same->set.kernels.push_back(one.set.kernels.front());
  }
}

/// An operator that runs a kernel, with its samples on the first axis.
struct Operator {
  std::string signature;
  std::int64_t samples = 1;
};

Operator convolution_operator(const std::array<std::int64_t, 7>& s) {
  const auto [images, in, out, kernel, size, stride, padding] = s;
  const std::int64_t size_out = (size + 2 * padding - kernel) / stride + 1;
  return {fmt::format("Conv(fp32[n,{0},{1},{1}]', fp32[{2},{0},{3},{3}]*') -> fp32[n,{2},{4},{4}] "
                      "{{pads={5},{5},{5},{5}, strides={6},{6}}}",
                      in, size, out, kernel, size_out, padding, stride),
          images};
}

/// Returns the operator that tests/gpu/kernels.py runs: all of its operands get gradients.
Operator operator_of(const std::string& kernel_class, const MeasuredKernel& kernel) {
  std::array<std::int64_t, 7> s;
  std::transform(kernel.shape.begin(), kernel.shape.end(), s.begin(),
                 [](double extent) { return static_cast<std::int64_t>(extent); });
  if (kernel_class == "conv") return convolution_operator(s);
  if (kernel_class == "linear") {
    return {fmt::format("MatMul(fp32[n,{0},{2}]', fp32[{2},{1}]*') -> fp32[n,{0},{1}]", s[1], s[2],
                        s[3]),
            s[0]};
  }
  if (kernel_class == "bmm") {
    return {fmt::format("MatMul(fp32[n,{0},{2}]', fp32[n,{2},{1}]') -> fp32[n,{0},{1}]", s[1], s[2],
                        s[3]),
            s[0]};
  }
  std::string_view text = "Relu(fp32[n,{0}]') -> fp32[n,{0}]";
  if (kernel_class == "add") text = "Add(fp32[n,{0}]', fp32[n,{0}]') -> fp32[n,{0}]";
  if (kernel_class == "gelu") text = "Gelu(fp32[n,{0}]') -> fp32[n,{0}]";
  if (kernel_class == "softmax") text = "Softmax(fp32[n,{0}]') -> fp32[n,{0}] {{axis=-1}}";
  if (kernel_class == "ln") {
    text = "LayerNormalization(fp32[n,{0}]', fp32[{0}]*', fp32[{0}]*') -> fp32[n,{0}] {{axis=-1}}";
  }
  return {fmt::format(fmt::runtime(text), s[1]), s[0]};
}

double planned_seconds(const MeasuredPass& pass, const Operator& op, const Cluster& cluster) {
  const std::optional<Graph> graph = graph_of_signature(op.signature);
  AGPCS_CHECK(graph.has_value(), "no signature: {}", op.signature);
  Training training;
  training.batch = op.samples;
  training.precision = pass.precision;
  const Result<CostTable> costs = CostTable::make(*graph, cluster, training);
  AGPCS_CHECK(costs.ok(), "{}", costs.status().message());
  const OpSeconds seconds = costs->seconds(0, 0, op.samples);
  return pass.backward ? seconds.backward : seconds.forward;
}

}  // namespace

Result<std::vector<MeasuredPass>> read_measured_passes(const std::string& file) {
  constexpr std::string_view kHint = "  hint: it is to be what tests/gpu/kernels.py writes";
  std::ifstream in(file);
  std::string row;
  std::getline(in, row);  // the header
  std::vector<MeasuredPass> passes;
  for (int line = 2; std::getline(in, row); ++line) {
    const std::optional<MeasuredPass> one = read_row(row);
    if (!one) {
      return invalid_input(
          fmt::format("{}:{}: error: no kernel that is known: '{}'\n{}", file, line, row, kHint));
    }
    add(*one, passes);
  }
  if (!passes.empty()) return passes;
  return invalid_input(fmt::format("{}: error: has no measured kernels\n{}", file, kHint));
}

ExpectedSeconds expected_seconds(const MeasuredPass& pass, const MeasuredKernel& kernel) {
  const Cluster cluster = cluster_measured(pass.set.device);
  Cluster without = cluster;  // without processors, a kind has the roofline
  without.kinds.front().processors = {};
  const Operator op = operator_of(pass.set.kernel_class, kernel);
  return {planned_seconds(pass, op, cluster), planned_seconds(pass, op, without)};
}

}  // namespace agpcs
