// SPDX-License-Identifier: Apache-2.0
#include "cost_model/kernel/terms.h"

#include "cost_model/kernel/operator.h"
#include "ir/graph/op_table_rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace agpcs {
namespace {

constexpr std::int64_t kFewChannels = 8;  // fewer do not fill a vector

bool is_product(const Op& op) { return op.type == "MatMul" || op.type == "Gemm"; }

bool has_operands(const Op& op) {
  return op.domain.empty() && op.inputs.size() > 1 && op.inputs[0] != kNone &&
         op.inputs[1] != kNone && (is_product(op) || op.type == "Conv");
}

std::string convolution_group(const Graph& graph, const Op& op) {
  const Shape& filters = graph.tensor(op.inputs[1]).shape;
  if (filters.size() < 3) return op.type;
  const std::int64_t channels = filters[1].fixed;
  if (channels < kFewChannels) {
    return op.int_attribute("group", 1) > 1 ? "Conv depthwise" : "Conv of images";
  }
  const bool small = std::all_of(filters.begin() + 2, filters.end(),
                                 [](const Extent& extent) { return extent.fixed == 1; });
  if (!small) return op.type;
  const std::vector<std::int64_t> strides = op.ints_attribute("strides");
  const bool strided =
      std::any_of(strides.begin(), strides.end(), [](std::int64_t s) { return s > 1; });
  return strided ? "Conv 1x1 strided" : "Conv 1x1";
}

/// The bytes of a pass that sum the gradients of several consumers.
double summed_bytes(const OpAt& at) {
  double bytes = 0;
  for (const TensorId id : at.op.outputs) {
    if (id == kNone) continue;
    bytes += 3.0 * gradient_sums(at, id) * at.bytes(&at.graph.tensor(id));
  }
  return bytes;
}

OperatorTerms kernel_terms(const KernelDevice& device, const OperatorKernels& kernels,
                           double summed) {
  const auto of = [&](const OperatorKernels::Pass& pass) -> std::vector<double> {
    const auto count = static_cast<double>(pass.products.size() + pass.convolutions.size());
    if (count == 0) return {};
    return {count, pass_seconds(device, kernel_parameters(), kernels, pass, 0)};
  };
  OperatorTerms terms{of(kernels.forward), of(kernels.backward)};
  if (!terms.backward.empty()) terms.backward.push_back(summed);
  return terms;
}

double factor_at(const CorrectionFit& fit, std::int64_t samples) {
  if (fit.samples.empty()) return 1;
  const auto above = std::lower_bound(fit.samples.begin(), fit.samples.end(), samples);
  if (above == fit.samples.begin()) return fit.factors.front();
  if (above == fit.samples.end()) return fit.factors.back();
  const auto high = static_cast<std::size_t>(above - fit.samples.begin()), low = high - 1;
  const auto log_of = [](std::int64_t n) { return std::log(static_cast<double>(n)); };
  const double part = (log_of(samples) - log_of(fit.samples[low])) /
                      (log_of(fit.samples[high]) - log_of(fit.samples[low]));
  return fit.factors[low] + part * (fit.factors[high] - fit.factors[low]);
}

}  // namespace

std::string correction_group(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  if (!has_operands(op)) return op.domain.empty() ? op.type : op.domain + "." + op.type;
  if (op.type == "Conv") return convolution_group(graph, op);
  return graph.tensor(op.inputs[1]).shape.size() > 2 ? "batched product" : "product";
}

OperatorTerms operator_terms(const Graph& graph, OpId id, std::int64_t samples, const OpCost& work,
                             const std::optional<KernelDevice>& device) {
  const OpAt at{graph, graph.op(id), samples, Precision::kFp32};
  const double summed = summed_bytes(at);
  if (device) {
    const auto kernels = kernels_of(graph, id, samples, Precision::kFp32);
    if (kernels) return kernel_terms(*device, *kernels, summed);
  }
  const auto pass = [&](double flops, double bytes, double sums) -> std::vector<double> {
    if (flops <= 0 && bytes <= 0) return {};
    if (!has_operands(at.op)) return {1, flops, std::max(0.0, bytes - sums), sums};
    return {1,   flops, at.bytes(at.input(0)), at.bytes(at.input(1)), at.bytes(at.first_output()),
            sums};
  };
  return {pass(work.forward_flops, work.forward_bytes, 0),
          pass(work.backward_flops, work.backward_bytes, summed)};
}

std::vector<double> input_terms(double bytes) { return {1, bytes}; }

double input_bytes(const Graph& graph, std::int64_t samples) {
  double bytes = 0;
  for (const TensorId id : graph.inputs) {
    const Tensor& tensor = graph.tensor(id);
    bytes += static_cast<double>(elements_at(tensor.shape, samples)) *
             static_cast<double>(size_of(tensor.type));
  }
  return bytes;
}

double explained_seconds(const std::vector<double>& terms, std::int64_t samples,
                         const CorrectionFit& fit) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(terms.size(), fit.coefficients.size()));
  const double seconds =
      std::inner_product(terms.begin(), terms.begin() + count, fit.coefficients.begin(), 0.0);
  return seconds * factor_at(fit, samples);
}

}  // namespace agpcs
