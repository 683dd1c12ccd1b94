// SPDX-License-Identifier: Apache-2.0
// The whole graph on one device, and comparisons with it.
#include "ir/base/check.h"
#include "runtime/torch/stage.h"
#include "tests/system/executor/split_member.h"
#include "tests/system/executor/team/team_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

namespace agpcs::testing {
namespace {

at::Tensor random_like(const at::Tensor& x, std::uint64_t seed) {
  return at::randn(x.sizes(), at::detail::createCPUGenerator(seed), at::kDouble);
}

/// Returns how many numbers the integers of an input may be: those of a look-up, of labels, or of a
/// mask.
std::int64_t index_count(const Graph& graph, TensorId id) {
  for (const OpId reader : graph.tensor(id).consumers) {
    const Op& op = graph.op(reader);
    if (op.type == "Gather" && op.inputs[1] == id) {
      return graph.tensor(op.inputs[0]).shape[0].fixed;
    }
    if (op.type == "SoftmaxCrossEntropyLoss") return graph.tensor(op.inputs[0]).shape[1].fixed;
    if (op.type == "Reshape") return index_count(graph, op.outputs[0]);
  }
  return 2;
}

at::Tensor random_value(const Graph& graph, TensorId id, std::int64_t samples, std::uint64_t seed) {
  const Tensor& tensor = graph.tensor(id);
  const std::vector<std::int64_t> dims = dims_at(tensor.shape, samples);
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  if (is_floating(tensor.type)) {
    const at::Tensor x = at::rand(dims, generator, at::kDouble);
    return tensor.kind == TensorKind::kState ? x + 0.5 : x - 0.4;
  }
  return at::randint(index_count(graph, id), dims, generator, computed_type(tensor.type));
}

std::string compare(const Graph& graph, const TensorMap& got, const TensorMap& want,
                    double relative, std::string_view what) {
  for (const auto& [id, x] : got) {
    const auto other = want.find(id);
    const std::string& name = graph.tensor(id).name;
    if (other == want.end() || !other->second.defined()) {
      if (x.to(at::kDouble).abs().max().item<double>() == 0) continue;  // none flows to it
      return fmt::format("{}{} is not expected", what, name);
    }
    const at::Tensor expected = other->second.to(at::kDouble), own = x.to(at::kDouble);
    if (own.sizes() != expected.sizes()) return fmt::format("{}{} has another shape", what, name);
    const at::Tensor finite = at::where(at::isfinite(expected), expected, 0);
    const double scale = expected.numel() == 0 ? 0 : finite.abs().max().item<double>();
    if (at::allclose(own, expected, relative, relative * scale + 1e-12, true)) continue;
    return fmt::format("{}{} differs by {}, its greatest element is {}", what, name,
                       (own - expected).abs().max().item<double>(), scale);
  }
  return {};
}

/// Compares gradients, of which none may be missing.
std::string compare_all(const Graph& graph, const TensorMap& got, const TensorMap& want,
                        double relative) {
  for (const auto& [id, x] : want) {
    if (!x.defined() || got.count(id) != 0) continue;
    return fmt::format("the gradient of {} is missing", graph.tensor(id).name);
  }
  return compare(graph, got, want, relative, "the gradient of ");
}

/// Returns where an operator draws from.
RandomSource random_source(const Graph& graph, const Op& op, std::int64_t samples) {
  RandomSource random{kDropoutSeed, 0, samples, kNone};
  const Shape& shape = graph.tensor(op.inputs[0]).shape;
  for (std::size_t axis = 0; axis < shape.size() && random.batch_axis == kNone; ++axis) {
    if (shape[axis].per_sample != 0) random.batch_axis = static_cast<int>(axis);
  }
  return random;
}

/// Adds `x` if it is defined; a sum may begin undefined.
void add_to(at::Tensor& sum, const at::Tensor& x) {
  if (x.defined()) sum = sum.defined() ? sum + x : x;
}

}  // namespace

at::Tensor seed_for(const Graph& graph, TensorId id, const at::Tensor& whole) {
  return id == graph.loss ? at::ones_like(whole) : random_like(whole, 900 + id);
}

at::Tensor leaf_of(const at::Tensor& x, bool gradient) {
  return x.defined() ? x.detach().clone().set_requires_grad(gradient) : x;
}

TensorMap leaf_values(const Graph& graph, const std::vector<OpId>& ops, std::int64_t samples,
                      std::uint64_t seed) {
  TensorMap leaves;
  std::set<TensorId> made;
  for (const OpId op : ops) made.insert(graph.op(op).outputs.begin(), graph.op(op).outputs.end());
  for (const OpId op : ops) {
    for (const TensorId id : graph.op(op).inputs) {
      if (id == kNone || made.count(id) != 0 || leaves.count(id) != 0) continue;
      const Tensor& tensor = graph.tensor(id);
      if (is_fixed(tensor)) {
        const auto fixed = fixed_tensors(graph, {id}, samples);
        AGPCS_CHECK(fixed.ok(), "{}", fixed.status().message());
        const at::Tensor& value = fixed->at(id);
        leaves[id] = is_floating(tensor.type) ? value.to(at::kDouble) : value;
      } else {
        const bool lasts = tensor.kind != TensorKind::kInput;
        leaves[id] = random_value(graph, id, samples,
                                  static_cast<std::uint64_t>(id) + (lasts ? 0 : 1000 * seed));
      }
    }
  }
  return leaves;
}

TrainedStep run_alone(const Graph& graph, const std::vector<OpId>& ops,
                      const std::vector<TensorMap>& leaves, std::int64_t samples) {
  TrainedStep step;
  for (const TensorMap& own : leaves) {
    TensorMap values;
    for (const auto& [id, x] : own) values[id] = leaf_of(x, has_gradient(graph.tensor(id)));
    for (const OpId id : ops) {
      const Op& op = graph.op(id);
      Tensors in;
      for (const TensorId input : op.inputs) {
        in.push_back(input == kNone ? at::Tensor() : values.at(input));
      }
      const Tensors out = run_kernel(op, in, random_source(graph, op, samples));
      for (std::size_t i = 0; i < op.outputs.size(); ++i) {
        if (op.outputs[i] != kNone) values[op.outputs[i]] = out[i];
      }
    }
    at::Tensor product;
    for (const TensorId id : leaving_tensors(graph, ops)) {
      const at::Tensor& x = values.at(id);
      if (x.requires_grad()) add_to(product, (x * seed_for(graph, id, x)).sum());
    }
    if (product.defined()) product.backward();
    TensorMap gradients;
    for (const auto& [id, x] : own) {
      const Tensor& tensor = graph.tensor(id);
      if (!has_gradient(tensor)) continue;
      const bool parameter = tensor.kind == TensorKind::kParameter;
      add_to(parameter ? step.parameter_gradients[id] : gradients[id], values[id].grad());
    }
    for (auto& [id, x] : values) x = x.detach();
    step.values.push_back(std::move(values));
    step.gradients.push_back(std::move(gradients));
  }
  return step;
}

std::string difference(const Graph& graph, const TrainedStep& team, const TrainedStep& alone,
                       double relative) {
  for (std::size_t i = 0; i < alone.values.size(); ++i) {
    std::string text = compare(graph, team.values[i], alone.values[i], relative, "");
    if (text.empty() && team.values[i].empty()) text = "nothing leaves";
    if (text.empty()) text = compare_all(graph, team.gradients[i], alone.gradients[i], relative);
    if (!text.empty()) return text;
  }
  return compare_all(graph, team.parameter_gradients, alone.parameter_gradients, relative);
}

}  // namespace agpcs::testing
