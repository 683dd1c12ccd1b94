// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx_roles.h"

#include "frontend/onnx_attributes.h"
#include "frontend/onnx_dense.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace agpcs::frontend {
namespace {

/// What the uses of a tensor say, joined.
struct Uses {
  bool state = false;    ///< running statistics
  bool weight = false;   ///< the weight of an operator
  bool trained = false;  ///< an input with a gradient
  void join(const Uses& other) {
    state |= other.state;
    weight |= other.weight;
    trained |= other.trained;
  }
};

/// Inputs of `type` that are weights, as a bit mask.
unsigned weight_inputs(std::string_view type) {
  constexpr std::pair<std::string_view, unsigned> kWeights[] = {
      {"Conv", 0b110},
      {"ConvTranspose", 0b110},
      {"DeformConv", 0b1010},
      {"Gemm", 0b111},
      {"MatMul", 0b11},
      {"BatchNormalization", 0b110},
      {"LayerNormalization", 0b110},
      {"InstanceNormalization", 0b110},
      {"GroupNormalization", 0b110},
      {"RMSNormalization", 0b10},
      {"PRelu", 0b10},
      {"Gather", 0b1},
      {"Einsum", 0b111},
      {"LSTM", 0b10001110},
      {"GRU", 0b1110},
      {"RNN", 0b1110},
  };
  for (const auto& [name, inputs] : kWeights) {
    if (name == type) return inputs;
  }
  return 0;
}

/// Inputs of `type` through which no gradient flows.
unsigned inert_inputs(std::string_view type) {
  constexpr unsigned kAll = ~0U, kAllButFirst = ~1U;
  constexpr std::pair<std::string_view, unsigned> kInert[] = {
      {"Resize", kAllButFirst},
      {"Upsample", kAllButFirst},
      {"Clip", kAllButFirst},
      {"Pad", kAllButFirst},
      {"Dropout", kAllButFirst},
      {"Where", 0b1},
      {"OneHot", kAll},
      {"Range", kAll},
      {"Shape", kAll},
      {"Size", kAll},
      {"ConstantOfShape", kAll},
      {"Equal", kAll},
      {"Greater", kAll},
      {"GreaterOrEqual", kAll},
      {"Less", kAll},
      {"LessOrEqual", kAll},
      {"IsNaN", kAll},
      {"IsInf", kAll},
      {"Floor", kAll},
      {"Ceil", kAll},
      {"Round", kAll},
      {"Sign", kAll},
      {"ArgMax", kAll},
      {"ArgMin", kAll},
      {"NonZero", kAll},
      {"NonMaxSuppression", kAll},
      {"EyeLike", kAll},
      {"RandomNormalLike", kAll},
      {"RandomUniformLike", kAll},
      {"Bernoulli", kAll},
      {"Multinomial", kAll},
      {"QuantizeLinear", kAllButFirst},
      {"DequantizeLinear", kAllButFirst},
  };
  for (const auto& [name, inputs] : kInert) {
    if (name == type) return inputs;
  }
  return 0;
}

/// Its output holds the elements of its first input, and gradients flow through it.
bool is_view(const onnx::NodeProto& node) {
  constexpr std::string_view kViews[] = {"Identity",  "Reshape", "Transpose", "Squeeze",
                                         "Unsqueeze", "Flatten", "Cast"};
  if (node.output_size() == 0) return false;
  return std::find(std::begin(kViews), std::end(kViews), node.op_type()) != std::end(kViews);
}

bool casts_to_integer(const onnx::NodeProto& node) {
  return node.op_type() == "Cast" && !is_floating_type(static_cast<int>(int_of(node, "to", 0)));
}

class RoleFinder {
 public:
  explicit RoleFinder(const Model& model) : model_(model) {}

  std::unordered_map<std::string_view, TensorKind> run() {
    // Backward, so that the uses of a view's output are known when the view is reached.
    for (auto it = model_.order.rbegin(); it != model_.order.rend(); ++it) visit(model_.node(*it));
    std::unordered_map<std::string_view, TensorKind> roles;
    for (const auto& [name, tensor] : model_.initializers) roles[name] = role_of(*tensor);
    for (const int index : model_.order) {
      const onnx::NodeProto& node = model_.node(index);
      if (node.output_size() == 0 || !is_generator(node)) continue;
      roles[node.output(0)] = generated_role(uses_[node.output(0)]);
    }
    return roles;
  }

 private:
  static bool is_generator(const onnx::NodeProto& node) {
    return domain_of(node).empty() &&
           (node.op_type() == "Constant" || node.op_type() == "ConstantOfShape");
  }

  void visit(const onnx::NodeProto& node) {
    const bool standard = domain_of(node).empty();
    const unsigned weights = standard ? weight_inputs(node.op_type()) : 0;
    const unsigned inert = !standard                ? 0
                           : casts_to_integer(node) ? ~0U
                                                    : inert_inputs(node.op_type());
    const bool norm = standard && node.op_type() == "BatchNormalization";
    for (int i = 0; i < node.input_size(); ++i) {
      Uses& uses = uses_[node.input(i)];
      if (norm && (i == 3 || i == 4)) {
        uses.state = true;
      } else if (standard && i == 0 && inert == 0 && is_view(node)) {
        uses.join(uses_[node.output(0)]);
      } else if (i >= 32 || ((inert >> i) & 1U) == 0) {
        uses.trained = true;
        uses.weight |= i < 32 && ((weights >> i) & 1U) != 0;
      }
    }
  }

  TensorKind role_of(const onnx::TensorProto& tensor) const {
    const auto it = uses_.find(tensor.name());
    if (it == uses_.end() || !is_floating_type(tensor.data_type())) return TensorKind::kConstant;
    if (it->second.state) return TensorKind::kState;
    return it->second.trained && tensor.dims_size() > 0 ? TensorKind::kParameter
                                                        : TensorKind::kConstant;
  }

  static TensorKind generated_role(const Uses& uses) {
    if (uses.state) return TensorKind::kState;
    return uses.weight ? TensorKind::kParameter : TensorKind::kConstant;
  }

  const Model& model_;
  std::unordered_map<std::string_view, Uses> uses_;
};

}  // namespace

std::unordered_map<std::string_view, TensorKind> find_roles(const Model& model) {
  return RoleFinder(model).run();
}

}  // namespace agpcs::frontend
