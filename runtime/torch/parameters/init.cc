// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/parameters/init.h"

#include "ir/base/rng.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

struct Filling {
  enum Kind { kConstant, kUniform, kNormal } kind = kConstant;
  double scale = 0;  // the constant, the bound, the deviation
};

Filling constant(double value) { return {Filling::kConstant, value}; }

Filling kaiming(double gain, std::int64_t fan_in) {
  const double deviation = gain / std::sqrt(static_cast<double>(std::max<std::int64_t>(fan_in, 1)));
  return {Filling::kUniform, std::sqrt(3.0) * deviation};
}

// A use of the weight by an operator that computes with it, and the weight's dims in that operator.
struct Use {
  const Op* op = nullptr;
  std::size_t input = 0;
  std::vector<std::int64_t> dims;
};

std::vector<std::int64_t> fixed_dims(const Tensor& tensor) { return dims_at(tensor.shape, 1); }

bool passes_weight_through(const std::string& type) {
  static const std::set<std::string> kTypes = {"Transpose", "Identity", "Cast",
                                               "Reshape",   "Squeeze",  "Unsqueeze"};
  return kTypes.count(type) != 0;
}

// Finds the first operator that computes with the weight, past those that only rearrange it.
Use first_use(const Graph& graph, TensorId id) {
  TensorId at = id;
  for (int hops = 0; hops < 8 && !graph.tensor(at).consumers.empty(); ++hops) {
    const Op& op = graph.op(graph.tensor(at).consumers.front());
    const auto position = std::find(op.inputs.begin(), op.inputs.end(), at) - op.inputs.begin();
    if (!passes_weight_through(op.type) || position != 0) {
      return {&op, static_cast<std::size_t>(position), fixed_dims(graph.tensor(at))};
    }
    at = op.outputs.front();
  }
  return {};
}

std::int64_t product_from(const std::vector<std::int64_t>& dims, std::size_t first) {
  std::int64_t product = 1;
  for (std::size_t i = first; i < dims.size(); ++i) product *= dims[i];
  return product;
}

bool is_normalization(const std::string& type) {
  return type == "BatchNormalization" || type == "LayerNormalization" ||
         type == "InstanceNormalization" || type == "GroupNormalization";
}

Filling filling_of_matrix(const Use& use) {
  const auto& dims = use.dims;
  if (dims.size() < 2) return constant(0);
  const std::int64_t rows = dims[dims.size() - 2], columns = dims.back();
  if (use.op->type == "Gemm") {
    const bool transposed = use.op->int_attribute(use.input == 0 ? "transA" : "transB", 0) != 0;
    return kaiming(1, transposed == (use.input == 0) ? rows : columns);
  }
  return kaiming(1, use.input == 0 ? columns : rows);
}

Filling filling_of(const Graph& graph, TensorId id) {
  const Tensor& tensor = graph.tensor(id);
  const Use use = first_use(graph, id);
  if (use.op == nullptr) return constant(0);
  const std::string& type = use.op->type;
  if (type == "BatchNormalization" && use.input >= 3) return constant(use.input == 4 ? 1 : 0);
  if (tensor.kind == TensorKind::kState) return constant(0);
  if (is_normalization(type)) return constant(use.input == 1 ? 1 : 0);
  if (type == "Conv" && use.input == 1) return kaiming(std::sqrt(2.0), product_from(use.dims, 1));
  if (type == "ConvTranspose" && use.input == 1) {
    return kaiming(std::sqrt(2.0), use.dims[0] * product_from(use.dims, 2));
  }
  if ((type == "Gemm" || type == "MatMul") && use.input <= 1) return filling_of_matrix(use);
  if (type == "Gather" && use.input == 0) return {Filling::kNormal, 0.02};
  if (type == "PRelu") return constant(0.25);
  if (type == "Mul" && use.dims.size() <= 1) return constant(1);
  if (use.dims.size() >= 2 && type != "Add") return kaiming(1, use.dims.back());
  return constant(0);
}

double unit(std::uint32_t word) { return (static_cast<double>(word) + 0.5) / 4294967296.0; }

// Returns a normal number made of two uniform words (Box and Muller's transform).
double normal(std::uint32_t a, std::uint32_t b) {
  constexpr double kTwoPi = 6.283185307179586;
  return std::sqrt(-2.0 * std::log(unit(a))) * std::cos(kTwoPi * unit(b));
}

}  // namespace

void initialize(const Graph& graph, TensorId id, std::uint64_t seed, std::span<float> out) {
  const Filling filling = filling_of(graph, id);
  if (filling.kind == Filling::kConstant) {
    std::fill(out.begin(), out.end(), static_cast<float>(filling.scale));
    return;
  }
  const std::uint64_t key = stable_hash(graph.tensor(id).name, seed);
  const bool uniform = filling.kind == Filling::kUniform;
  const std::size_t per_draw = uniform ? 4 : 2;
  for (std::size_t i = 0; i < out.size(); i += per_draw) {
    const auto words = philox(key, i / per_draw, 0);
    for (std::size_t k = 0; k < per_draw && i + k < out.size(); ++k) {
      const double value =
          uniform ? 2 * unit(words[k]) - 1 : normal(words[2 * k], words[2 * k + 1]);
      out[i + k] = static_cast<float>(filling.scale * value);
    }
  }
}

}  // namespace agpcs
