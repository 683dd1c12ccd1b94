// SPDX-License-Identifier: Apache-2.0
// FLOPs rules of the operator table that are not a constant per output element.
#include "ir/graph/op_table_rules.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

const Tensor* OpAt::input(std::size_t i) const {
  if (i >= op.inputs.size() || op.inputs[i] == kNone) return nullptr;
  return &graph.tensor(op.inputs[i]);
}

const Tensor* OpAt::output(std::size_t i) const {
  if (i >= op.outputs.size() || op.outputs[i] == kNone) return nullptr;
  return &graph.tensor(op.outputs[i]);
}

const Tensor* OpAt::first_output() const {
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    if (const Tensor* tensor = output(i)) return tensor;
  }
  return nullptr;
}

double OpAt::elements(const Tensor* tensor) const {
  if (tensor == nullptr) return 0;
  double elements = 1;
  for (const Extent& extent : tensor->shape) elements *= static_cast<double>(extent.at(samples));
  return elements;
}

double OpAt::bytes(const Tensor* tensor) const {
  if (tensor == nullptr) return 0;
  return elements(tensor) * static_cast<double>(element_bytes(tensor->type, precision));
}

double OpAt::extent(const Tensor* tensor, int axis) const {
  if (tensor == nullptr) return 1;
  const int rank = static_cast<int>(tensor->shape.size());
  const int i = axis < 0 ? axis + rank : axis;
  if (i < 0 || i >= rank) return 1;
  return static_cast<double>(tensor->shape[static_cast<std::size_t>(i)].at(samples));
}

bool OpAt::needs_gradient(std::size_t i) const {
  const Tensor* tensor = input(i);
  if (tensor == nullptr || !tensor->needs_gradient || !passes_gradient(op, i)) return false;
  return std::any_of(op.outputs.begin(), op.outputs.end(),
                     [&](TensorId id) { return id != kNone && graph.tensor(id).needs_gradient; });
}

bool OpAt::needs_any_gradient() const {
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (needs_gradient(i)) return true;
  }
  return false;
}

double forward_flops(const OpInfo& info, const OpAt& at) {
  const double complexity = info.flops.of != nullptr ? info.flops.of(at) : info.flops.constant;
  return at.elements(at.first_output()) * complexity;
}

namespace {

bool dropout_is_active(const Graph& graph, const Op& op) {
  if (op.float_attribute("ratio", 0.5) == 0) return false;
  if (op.attributes.count("training_mode") != 0) return op.int_attribute("training_mode", 0) != 0;
  if (op.version < 12 || op.inputs.size() < 3 || op.inputs[2] == kNone) return false;
  const Tensor& training = graph.tensor(op.inputs[2]);
  if (training.kind != TensorKind::kConstant || training.constant.bytes.empty()) return true;
  return training.constant.bytes[0] != std::byte{0};
}

bool pads_nothing(const Graph& graph, const Op& op) {
  std::vector<std::int64_t> pads = op.ints_attribute("pads");
  if (op.inputs.size() > 1 && op.inputs[1] != kNone) {
    const Tensor& tensor = graph.tensor(op.inputs[1]);
    if (tensor.kind != TensorKind::kConstant || tensor.type != DType::kInt64) return false;
    pads = tensor.constant.ints_at(1);
  }
  return !pads.empty() &&
         std::all_of(pads.begin(), pads.end(), [](std::int64_t p) { return p == 0; });
}

}  // namespace

bool is_view(const Graph& graph, const Op& op) {
  const OpInfo& info = op_info_of(op);
  if (info.op_class == OpClass::kView) return info.gradients != kNoInput;
  if (info.type == "Dropout") return !dropout_is_active(graph, op);
  if (info.type == "Pad") return pads_nothing(graph, op);
  if (info.type != "Transpose") return false;
  const Tensor& stored = graph.tensor(storage_of(graph, op.inputs[0]));
  return stored.kind == TensorKind::kParameter || stored.frozen;
}

namespace rules {
namespace {

/// Returns the product of the extents from axis `from` on.
double extents_from(const OpAt& at, const Tensor* tensor, int from) {
  double product = 1;
  if (tensor == nullptr) return product;
  for (int axis = from; axis < static_cast<int>(tensor->shape.size()); ++axis) {
    product *= at.extent(tensor, axis);
  }
  return product;
}

double kernel_size(const OpAt& at) {
  double size = 1;
  for (const std::int64_t extent : at.op.ints_attribute("kernel_shape")) {
    size *= static_cast<double>(extent);
  }
  return size;
}

}  // namespace

double conv_flops(const OpAt& at) {
  return 2 * extents_from(at, at.input(1), 1) + (at.input(2) != nullptr ? 1 : 0);
}

double conv_transpose_flops(const OpAt& at) {
  const double out = at.elements(at.output(0));
  const double products = at.elements(at.input(0)) * extents_from(at, at.input(1), 1);
  return (out > 0 ? 2 * products / out : 0) + (at.input(2) != nullptr ? 1 : 0);
}

double gemm_flops(const OpAt& at) {
  const int inner = at.op.int_attribute("transA", 0) != 0 ? 0 : 1;
  return 2 * at.extent(at.input(0), inner) + (at.input(2) != nullptr ? 1 : 0);
}

double matmul_flops(const OpAt& at) { return 2 * at.extent(at.input(0), -1); }

/// Counts a multiply-add (or, for one operand, an addition) for every combination of index values.
/// Axes under an ellipsis count as far as the output has them.
double einsum_flops(const OpAt& at) {
  std::string equation = at.op.string_attribute("equation", "");
  std::erase(equation, ' ');
  std::map<char, double> extents;
  std::size_t operand = 0;
  int axis = 0;
  const std::string_view terms = std::string_view(equation).substr(0, equation.find("->"));
  for (std::size_t i = 0; i < terms.size(); ++i) {
    if (terms[i] == ',') {
      ++operand;
      axis = 0;
    } else if (terms[i] == '.') {
      i += 2;
      const std::size_t end = std::min(terms.find(',', i), terms.size());
      axis = -static_cast<int>(end - i - 1);  // labels after an ellipsis count from the end
    } else {
      double& extent = extents[terms[i]];
      extent = std::max(extent, at.extent(at.input(operand), axis++));
    }
  }
  double summed = 1;
  const std::size_t arrow = equation.find("->");
  for (const auto& [label, extent] : extents) {
    const bool kept = arrow != std::string::npos
                          ? equation.find(label, arrow + 2) != std::string::npos
                          : std::count(terms.begin(), terms.end(), label) == 1;
    if (!kept) summed *= extent;
  }
  return summed * static_cast<double>(std::max<std::size_t>(1, operand + 1));
}

/// Counts a product with the whole of W and R for each time step.
double recurrent_flops(const OpAt& at) {
  const double out = at.elements(at.first_output());
  const double steps = at.extent(at.input(0), 0) * at.extent(at.input(0), 1);
  const double weights = at.elements(at.input(1)) + at.elements(at.input(2));
  return out > 0 ? 2 * steps * weights / out : 0;
}

double kernel_flops(const OpAt& at) { return kernel_size(at); }

double lp_pool_flops(const OpAt& at) { return 3 * kernel_size(at) + 4; }

double lrn_flops(const OpAt& at) {
  return 2 * static_cast<double>(at.op.int_attribute("size", 1)) + 7;
}

/// Counts statistics only in training mode, which five outputs meant before opset 14.
double batch_norm_flops(const OpAt& at) {
  const bool five_outputs = at.op.version < 14 && at.op.outputs.size() == 5;
  return at.op.int_attribute("training_mode", five_outputs ? 1 : 0) != 0 ? 8 : 2;
}

/// Counts an LU factorization.
double det_flops(const OpAt& at) { return 2.0 / 3 * std::pow(at.extent(at.input(0), -1), 3); }

double variadic_flops(const OpAt& at) {
  return at.op.inputs.empty() ? 0 : static_cast<double>(at.op.inputs.size() - 1);
}

double top_k_flops(const OpAt& at) {
  const double out = at.elements(at.first_output());
  const int axis = static_cast<int>(at.op.int_attribute("axis", -1));
  const double k = std::max(1.0, at.extent(at.first_output(), axis));
  return out > 0 ? at.elements(at.input(0)) * (1 + std::ceil(std::log2(k))) / out : 0;
}

/// Counts an interpolation along each spatial axis: 3 FLOPs for linear, 7 for cubic.
namespace {

/// Returns true for queries [batch, sequence, heads x head size].
bool is_joined(const Tensor& queries) { return queries.shape.size() == 3; }

}  // namespace

double resize_flops(const OpAt& at) {
  const std::string mode = at.op.string_attribute("mode", "nearest");
  const Tensor* out = at.output(0);
  const double axes =
      out == nullptr ? 0 : std::max(0.0, static_cast<double>(out->shape.size()) - 2);
  if (mode == "linear") return 3 * axes;
  return mode == "cubic" ? 7 * axes : 0;
}

/// Counts a product and a sum for each input that an output is made of.
double grid_sample_flops(const OpAt& at) {
  const std::string mode = at.op.string_attribute("mode", "linear");
  if (mode == "nearest") return 1;
  const Tensor* out = at.output(0);
  const double axes =
      out == nullptr ? 0 : std::max(0.0, static_cast<double>(out->shape.size()) - 2);
  const bool cubic = mode == "cubic" || mode == "bicubic";
  return 2 * std::pow(cubic ? 4 : 2, std::min(axes, 8.0));
}

double cross_entropy_flops(const OpAt& at) {
  return smooths_labels(at.op) ? per_input<9>(at) : per_input<8>(at);
}

double attention_keys(const OpAt& at) {
  const Tensor *q = at.input(0), *k = at.input(1);
  if (q == nullptr || k == nullptr) return 0;
  const double past = at.input(4) != nullptr ? at.extent(at.input(4), 2) : 0;
  return at.extent(k, is_joined(*q) ? 1 : 2) + past;
}

double attention_scores(const OpAt& at) {
  const Tensor* q = at.input(0);
  if (q == nullptr) return 0;
  const double heads =
      is_joined(*q) ? static_cast<double>(at.op.int_attribute("q_num_heads", 1)) : at.extent(q, 1);
  return at.extent(q, 0) * heads * at.extent(q, is_joined(*q) ? 1 : 2) * attention_keys(at);
}

double attention_score_flops(const OpAt& at) {
  const Tensor* q = at.input(0);
  if (q == nullptr) return 0;
  const double heads =
      is_joined(*q) ? static_cast<double>(at.op.int_attribute("q_num_heads", 1)) : 1;
  return attention_scores(at) * (2 * at.extent(q, -1) / heads + 8);
}

/// Counts both products and, for each score, a softmax.
double attention_flops(const OpAt& at) {
  const double out = at.elements(at.first_output());
  if (out <= 0) return 0;
  const Tensor* q = at.input(0);
  const bool joined = q != nullptr && q->shape.size() == 3;
  const auto heads = static_cast<double>(joined ? at.op.int_attribute("q_num_heads", 1) : 1);
  const double head_sizes = (at.extent(q, -1) + at.extent(at.first_output(), -1)) / heads;
  return attention_scores(at) * (2 * head_sizes + 8) / out;
}

}  // namespace rules
}  // namespace agpcs
