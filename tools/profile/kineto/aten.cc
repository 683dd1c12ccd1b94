// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/kineto/aten.h"

#include "ir/graph/graph.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <unordered_map>
#include <vector>

namespace agpcs {
namespace {

using Dims = std::vector<std::int64_t>;
using enum AtenOperator::Output;

constexpr std::int64_t kMostExtent = 1 << 20;          // of a kernel, a stride, an axis
constexpr double kMostOutput = std::int64_t{1} << 50;  // of an output

// clang-format off
constexpr AtenOperator kTable[] = {
    // Products.
    {"mm", "MatMul", kMatrices, {0, 1, -1, -1, -1}}, {"bmm", "MatMul", kMatrices, {0, 1, -1, -1, -1}},
    {"addmm", "Gemm", kMatrices, {1, 2, 0, -1, -1}}, {"baddbmm", "MatMul", kMatrices, {1, 2, -1, -1, -1}},
    {"_addmm_activation", "Gemm", kMatrices, {1, 2, 0, -1, -1}}, {"mv", "MatMul", kMatrices, {0, 1, -1, -1, -1}},
    {"dot", "MatMul", kMatrices, {0, 1, -1, -1, -1}}, {"mkldnn_linear", "MatMul", kMatrices, {0, 1, -1, -1, -1}},
    {"convolution", "Conv", kConvolution, {0, 1, 2, -1, -1}},
    {"_scaled_dot_product_flash_attention", "Attention", kAttention, {0, 1, 2, -1, -1}},
    {"_scaled_dot_product_flash_attention_for_cpu", "Attention", kAttention, {0, 1, 2, -1, -1}},
    {"_scaled_dot_product_efficient_attention", "Attention", kAttention, {0, 1, 2, -1, -1}},
    {"_scaled_dot_product_cudnn_attention", "Attention", kAttention, {0, 1, 2, -1, -1}},
    {"_scaled_dot_product_fused_attention_overrideable", "Attention", kAttention, {0, 1, 2, -1, -1}},
    // Normalizations.
    {"native_layer_norm", "LayerNormalization", kSame, {0, 2, 3, -1, -1}},
    {"_fused_rms_norm", "RMSNormalization", kSame, {0, 2, -1, -1, -1}},
    {"native_group_norm", "GroupNormalization", kSame, {0, 1, 2, -1, -1}},
    {"batch_norm", "BatchNormalization", kSame}, {"_batch_norm_impl_index", "BatchNormalization", kSame},
    {"native_batch_norm", "BatchNormalization", kSame}, {"cudnn_batch_norm", "BatchNormalization", kSame},
    {"miopen_batch_norm", "BatchNormalization", kSame},
    {"instance_norm", "InstanceNormalization", kSame, {0, 1, 2, -1, -1}},
    // Softmax and losses.
    {"_softmax", "Softmax", kSame, {0, -1, -1, -1, -1}}, {"_log_softmax", "LogSoftmax", kSame, {0, -1, -1, -1, -1}},
    {"nll_loss_forward", "NegativeLogLikelihoodLoss", kReduced, {0, 1, -1, -1, -1}},
    {"nll_loss2d_forward", "NegativeLogLikelihoodLoss", kReduced, {0, 1, -1, -1, -1}},
    {"mse_loss", "Sub", kElementwise}, {"binary_cross_entropy_with_logits", "Softplus", kSame},
    // Pooling.
    {"max_pool2d_with_indices", "MaxPool", kPool, {0, -1, -1, -1, -1}}, {"avg_pool2d", "AveragePool", kPool, {0, -1, -1, -1, -1}},
    {"_adaptive_avg_pool2d", "GlobalAveragePool", kResized, {0, -1, -1, -1, -1}},
    {"adaptive_max_pool2d", "GlobalMaxPool", kResized, {0, -1, -1, -1, -1}},
    // Reductions.
    {"sum", "ReduceSum", kReduced, {0, -1, -1, -1, -1}}, {"mean", "ReduceMean", kReduced, {0, -1, -1, -1, -1}},
    {"amax", "ReduceMax", kReduced, {0, -1, -1, -1, -1}}, {"amin", "ReduceMin", kReduced, {0, -1, -1, -1, -1}},
    {"max", "ReduceMax", kReduced, {0, -1, -1, -1, -1}}, {"min", "ReduceMin", kReduced, {0, -1, -1, -1, -1}},
    {"prod", "ReduceProd", kReduced, {0, -1, -1, -1, -1}}, {"var", "ReduceSumSquare", kReduced, {0, -1, -1, -1, -1}},
    {"var_mean", "ReduceSumSquare", kReduced, {0, -1, -1, -1, -1}}, {"std", "ReduceSumSquare", kReduced, {0, -1, -1, -1, -1}},
    {"linalg_vector_norm", "ReduceL2", kReduced, {0, -1, -1, -1, -1}}, {"norm", "ReduceL2", kReduced, {0, -1, -1, -1, -1}},
    {"logsumexp", "ReduceLogSumExp", kReduced, {0, -1, -1, -1, -1}}, {"argmax", "ArgMax", kReduced, {0, -1, -1, -1, -1}},
    {"argmin", "ArgMin", kReduced, {0, -1, -1, -1, -1}}, {"any", "ReduceMax", kReduced, {0, -1, -1, -1, -1}},
    {"all", "ReduceMin", kReduced, {0, -1, -1, -1, -1}}, {"cumsum", "CumSum", kSame, {0, -1, -1, -1, -1}},
    {"topk", "TopK", kSame, {0, -1, -1, -1, -1}}, {"sort", "TopK", kSame, {0, -1, -1, -1, -1}},
    // Elementwise.
    {"add", "Add"}, {"sub", "Sub"}, {"rsub", "Sub"}, {"mul", "Mul"}, {"div", "Div"}, {"pow", "Pow"}, {"addcmul", "Mul"},
    {"addcdiv", "Div"}, {"lerp", "Add"}, {"maximum", "Max"}, {"minimum", "Min"}, {"clamp", "Clip", kSame},
    {"clamp_min", "Relu", kSame}, {"clamp_max", "Relu", kSame}, {"relu", "Relu", kSame}, {"threshold", "Relu", kSame},
    {"hardtanh", "Clip", kSame}, {"leaky_relu", "LeakyRelu", kSame}, {"elu", "Elu", kSame}, {"gelu", "Gelu", kSame},
    {"silu", "Swish", kSame}, {"mish", "Mish", kSame}, {"hardswish", "HardSwish", kSame},
    {"hardsigmoid", "HardSigmoid", kSame}, {"softplus", "Softplus", kSame}, {"sigmoid", "Sigmoid", kSame},
    {"tanh", "Tanh", kSame}, {"exp", "Exp", kSame}, {"log", "Log", kSame}, {"sqrt", "Sqrt", kSame},
    {"rsqrt", "Sqrt", kSame}, {"reciprocal", "Reciprocal", kSame}, {"erf", "Erf", kSame}, {"sin", "Sin", kSame},
    {"cos", "Cos", kSame}, {"neg", "Neg", kSame}, {"abs", "Abs", kSame}, {"sign", "Sign", kSame},
    {"floor", "Floor", kSame}, {"round", "Round", kSame}, {"where", "Where"}, {"masked_fill", "Where", kElementwise, {1, 0, -1, -1, -1}},
    {"native_dropout", "Dropout", kSame, {0, -1, -1, -1, -1}}, {"bernoulli", "Bernoulli", kSame, {0, -1, -1, -1, -1}},
    {"eq", "Equal"}, {"ne", "Equal"}, {"lt", "Less"}, {"le", "LessOrEqual"}, {"gt", "Greater"}, {"ge", "GreaterOrEqual"},
    {"logical_and", "And"}, {"logical_or", "Or"}, {"logical_not", "Not", kSame}, {"bitwise_and", "BitwiseAnd"},
    {"bitwise_or", "BitwiseOr"}, {"bitwise_not", "BitwiseNot", kSame}, {"isnan", "IsNaN", kSame}, {"isneginf", "IsInf", kSame}, {"isinf", "IsInf", kSame},
    {"remainder", "Mod"}, {"fmod", "Mod"}, {"glu", "Sigmoid", kSame},
    // Tables.
    {"embedding", "Gather", kRows, {0, 1, -1, -1, -1}}, {"index_select", "Gather", kRows, {0, 2, -1, -1, -1}},
    {"index", "Gather", kRows, {0, 1, -1, -1, -1}}, {"gather", "GatherElements", kRows, {0, 2, -1, -1, -1}},
    {"_index_put_impl_", "ScatterND", kSame, {0, -1, 2, -1, -1}}, {"index_add", "ScatterND", kSame, {0, 2, 3, -1, -1}},
    {"scatter", "ScatterElements", kSame, {0, 2, 3, -1, -1}}, {"scatter_add", "ScatterElements", kSame, {0, 2, 3, -1, -1}},
    // Copies.
    {"copy_", "Cast", kSame, {1, -1, -1, -1, -1}}, {"cat", "Concat", kJoined}, {"constant_pad_nd", "Pad", kSame, {0, -1, -1, -1, -1}},
    {"roll", "Transpose", kSame, {0, -1, -1, -1, -1}}, {"flip", "Transpose", kSame, {0, -1, -1, -1, -1}},
    {"triu", "Trilu", kSame, {0, -1, -1, -1, -1}}, {"tril", "Trilu", kSame, {0, -1, -1, -1, -1}},
    {"fill_", "ConstantOfShape", kSame, {-1, -1, -1, -1, -1}}, {"zero_", "ConstantOfShape", kSame, {-1, -1, -1, -1, -1}},
    {"arange", "Range", kSame}, {"upsample_nearest2d", "Resize", kResized, {0, -1, -1, -1, -1}},
    {"upsample_bilinear2d", "Resize", kResized, {0, -1, -1, -1, -1}},
    // Views and memory.
    {"view", "Reshape", kView}, {"_unsafe_view", "Reshape", kView}, {"reshape", "Reshape", kView}, {"flatten", "Reshape", kView},
    {"unflatten", "Reshape", kView}, {"_reshape_alias", "Reshape", kView}, {"t", "Reshape", kView}, {"transpose", "Reshape", kView},
    {"permute", "Reshape", kView}, {"expand", "Reshape", kView}, {"expand_as", "Reshape", kView}, {"squeeze", "Reshape", kView},
    {"unsqueeze", "Reshape", kView}, {"select", "Reshape", kView}, {"slice", "Reshape", kView}, {"narrow", "Reshape", kView},
    {"split", "Reshape", kView}, {"split_with_sizes", "Reshape", kView}, {"chunk", "Reshape", kView}, {"unbind", "Reshape", kView},
    {"as_strided", "Reshape", kView}, {"view_as", "Reshape", kView}, {"detach", "Reshape", kView}, {"alias", "Reshape", kView},
    {"lift_fresh", "Reshape", kView}, {"to", "Reshape", kView}, {"contiguous", "Reshape", kView}, {"dropout", "Reshape", kView},
    {"resolve_conj", "Reshape", kView}, {"resolve_neg", "Reshape", kView}, {"empty", "Reshape", kView}, {"empty_like", "Reshape", kView},
    {"empty_strided", "Reshape", kView}, {"new_empty", "Reshape", kView}, {"new_empty_strided", "Reshape", kView},
    {"resize_", "Reshape", kView}, {"set_", "Reshape", kView}, {"item", "Reshape", kView}, {"_local_scalar_dense", "Reshape", kView},
    {"is_nonzero", "Reshape", kView}, {"result_type", "Reshape", kView}, {"movedim", "Reshape", kView}, {"unfold", "Reshape", kView},
    {"identity", "Reshape", kView}, {"scalar_tensor", "Reshape", kView}, {"broadcast_tensors", "Reshape", kView}, {"broadcast_to", "Reshape", kView},
};
// clang-format on

/// Returns the integers of "[2, 2]" or "2".
Dims integers(const TracedInputs& inputs, std::size_t position) {
  Dims values;
  if (position >= inputs.concrete.size()) return values;
  const std::string& text = inputs.concrete[position];
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    std::int64_t value = 0;
    const auto read = std::from_chars(at, end, value);
    if (read.ec == std::errc()) values.push_back(std::clamp(value, -kMostExtent, kMostExtent));
    at = read.ec == std::errc() ? read.ptr : at + 1;
  }
  return values;
}

std::int64_t at_or_last(const Dims& values, std::size_t i, std::int64_t otherwise) {
  if (values.empty()) return otherwise;
  return values[std::min(i, values.size() - 1)];
}

std::int64_t windows(std::int64_t extent, std::int64_t kernel, std::int64_t stride,
                     std::int64_t padding, std::int64_t dilation) {
  return std::max<std::int64_t>(
      0,
      (extent + 2 * padding - dilation * (kernel - 1) - 1) / std::max<std::int64_t>(stride, 1) + 1);
}

bool is_transposed(const TracedInputs& convolution) {
  return convolution.concrete.size() > 6 && convolution.concrete[6] == "True";
}

class Call {
 public:
  Call(const AtenOperator& row, const TracedInputs& inputs) : row_(row), inputs_(inputs) {}

  Dims output() const;

 private:
  Dims dims(int position) const {
    if (position < 0 || position >= static_cast<int>(inputs_.tensors.size())) return {};
    const TracedInput& input = inputs_.tensors[static_cast<std::size_t>(position)];
    return !input.list.empty() ? input.list.front() : input.dims;
  }
  Dims given(std::size_t i) const { return dims(row_.inputs[i]); }
  Dims broadcast() const;
  Dims convolved() const;
  Dims pooled() const;
  Dims reduced() const;

  const AtenOperator& row_;
  const TracedInputs& inputs_;
};

Dims Call::broadcast() const {
  Dims all;
  for (const TracedInput& input : inputs_.tensors) {
    if (!input.type) continue;
    if (input.dims.size() > all.size()) all.insert(all.begin(), input.dims.size() - all.size(), 1);
    const std::size_t from = all.size() - input.dims.size();
    for (std::size_t i = 0; i < input.dims.size(); ++i) {
      all[from + i] = std::max(all[from + i], input.dims[i]);
    }
  }
  return all;
}

Dims Call::convolved() const {
  Dims out = given(0);
  const Dims weight = given(1);
  if (out.size() < 3 || weight.size() != out.size()) return out;
  const Dims stride = integers(inputs_, 3), padding = integers(inputs_, 4),
             dilation = integers(inputs_, 5), more = integers(inputs_, 7);
  const bool transposed = is_transposed(inputs_);
  const std::int64_t groups = at_or_last(integers(inputs_, 8), 0, 1);
  out[1] = transposed ? weight[1] * groups : weight[0];
  for (std::size_t i = 2; i < out.size(); ++i) {
    const std::int64_t step = at_or_last(stride, i - 2, 1), pad = at_or_last(padding, i - 2, 0),
                       spread = at_or_last(dilation, i - 2, 1);
    out[i] = transposed ? (out[i] - 1) * step - 2 * pad + spread * (weight[i] - 1) +
                              at_or_last(more, i - 2, 0) + 1
                        : windows(out[i], weight[i], step, pad, spread);
  }
  return out;
}

Dims Call::pooled() const {
  Dims out = given(0);
  const Dims kernel = integers(inputs_, 1), stride = integers(inputs_, 2),
             padding = integers(inputs_, 3);
  for (std::size_t i = 2; i < out.size(); ++i) {
    const std::int64_t width = at_or_last(kernel, i - 2, 1);
    out[i] =
        windows(out[i], width, at_or_last(stride, i - 2, width), at_or_last(padding, i - 2, 0), 1);
  }
  return out;
}

Dims Call::reduced() const {
  Dims out = given(0);
  const Dims axes = integers(inputs_, 1);
  if (axes.empty() || row_.onnx == "NegativeLogLikelihoodLoss") return {1};
  for (std::int64_t axis : axes) {
    if (axis < 0) axis += static_cast<std::int64_t>(out.size());
    if (axis >= 0 && axis < static_cast<std::int64_t>(out.size()))
      out[static_cast<std::size_t>(axis)] = 1;
  }
  return out;
}

Dims Call::output() const {
  Dims out = given(0);
  switch (row_.output) {
    case kElementwise:
      return broadcast();
    case kView:
    case kSame:
      return out.empty() ? dims(0) : out;
    case kMatrices: {
      const Dims right = given(1);
      if (out.empty() || right.empty()) return {1};
      out.back() = right.size() > 1 ? right.back() : 1;
      return out;
    }
    case kConvolution:
      return convolved();
    case kPool:
      return pooled();
    case kResized: {
      const Dims extents = integers(inputs_, 1);
      for (std::size_t i = 0; i < extents.size() && i + 2 < out.size(); ++i)
        out[i + 2] = extents[i];
      return out;
    }
    case kReduced:
      return reduced();
    case kRows: {
      Dims rows = given(1);
      if (row_.onnx == "Gather")
        rows.insert(rows.end(), out.empty() ? out.end() : out.begin() + 1, out.end());
      return rows;
    }
    case kJoined: {
      std::int64_t elements = 0;
      for (const Dims& dims :
           inputs_.tensors.empty() ? std::vector<Dims>() : inputs_.tensors[0].list) {
        std::int64_t size = 1;
        for (const std::int64_t extent : dims) size *= extent;
        elements += size;
      }
      return {elements};
    }
    case kAttention: {
      const Dims values = given(2);
      if (!out.empty() && !values.empty()) out.back() = values.back();
      return out;
    }
  }
  return out;
}

TensorId add_tensor(Graph& graph, DType type, const Dims& dims, bool gradient) {
  Tensor tensor;
  tensor.type = type;
  for (const std::int64_t extent : dims) tensor.shape.push_back({extent, 0});
  tensor.needs_gradient = gradient && is_floating(type);
  graph.tensors.push_back(std::move(tensor));
  return static_cast<TensorId>(graph.tensors.size()) - 1;
}

Op operator_of(const AtenOperator& row, const TracedInputs& inputs) {
  Op op;
  op.type = row.onnx;
  if (row.output == kConvolution && is_transposed(inputs)) op.type = "ConvTranspose";
  if (row.onnx == "BatchNormalization") {
    op.attributes["training_mode"] =
        std::int64_t{inputs.concrete.size() > 5 && inputs.concrete[5] == "True"};
  }
  if (row.output == kPool) op.attributes["kernel_shape"] = integers(inputs, 1);
  if (row.onnx == "Dropout") op.attributes["training_mode"] = std::int64_t{1};
  return op;
}

}  // namespace

std::span<const AtenOperator> aten_operators() { return kTable; }

const AtenOperator* find_aten(std::string_view name) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const AtenOperator*> rows;
    for (const AtenOperator& row : kTable) rows.emplace(row.name, &row);
    return rows;
  }();
  constexpr std::string_view kNamespace = "aten::";
  if (!name.starts_with(kNamespace)) return nullptr;
  name.remove_prefix(kNamespace.size());
  auto at = by_name.find(name);
  if (at == by_name.end() && name.ends_with('_'))
    at = by_name.find(name.substr(0, name.size() - 1));
  return at == by_name.end() ? nullptr : at->second;
}

OpClass class_of(const AtenOperator& row) {
  if (row.output == kView) return OpClass::kView;
  Op op;
  op.type = row.onnx;
  return class_of(op);
}

OpCost work_of(const AtenOperator& row, const TracedInputs& inputs, Precision precision,
               bool backward) {
  if (row.output == kView) return {};
  Graph graph;
  Op op = operator_of(row, inputs);
  DType type = DType::kFp32;  // of what has none in the trace: tensors of a list
  for (const TracedInput& input : inputs.tensors) {
    if (input.type && is_floating(*input.type)) {
      type = *input.type;
      break;
    }
  }
  if (row.output == kJoined && !inputs.tensors.empty()) {
    for (const Dims& dims : inputs.tensors[0].list)
      op.inputs.push_back(add_tensor(graph, type, dims, backward));
  } else {
    for (const std::int8_t position : row.inputs) {
      const auto i = static_cast<std::size_t>(position);
      const TracedInput* input =
          position >= 0 && i < inputs.tensors.size() ? &inputs.tensors[i] : nullptr;
      if (input != nullptr && input->type) {
        op.inputs.push_back(add_tensor(graph, *input->type, input->dims, backward));
      } else if (input != nullptr && !input->list.empty()) {
        op.inputs.push_back(add_tensor(graph, DType::kInt64, input->list.front(), false));
      } else {
        op.inputs.push_back(kNone);
      }
    }
  }
  while (!op.inputs.empty() && op.inputs.back() == kNone) op.inputs.pop_back();
  const Dims output = Call(row, inputs).output();
  double elements = 1;
  for (const std::int64_t extent : output) elements *= static_cast<double>(extent);
  if (!(elements >= 0 && elements <= kMostOutput)) return {};
  op.outputs.push_back(add_tensor(graph, type, output, backward));
  graph.ops.push_back(std::move(op));
  link_graph(graph);
  return op_cost(graph, 0, 1, precision);
}

}  // namespace agpcs
