// SPDX-License-Identifier: Apache-2.0
// LayerNormalization and RMSNormalization: x, centered or not, divided by the root of its mean
// square, scaled and perhaps shifted.
#include "ir/graph/fuse/pattern.h"

#include <algorithm>

namespace agpcs {
namespace {

/// A tensor that is divided by the root of the mean of squares of itself and an epsilon.
struct Normalized {
  TensorId of = kNone;    ///< the tensor
  TensorId mean = kNone;  ///< of its squares
  double epsilon = 0;
};

/// Returns the square root that `id` is; kNone if it is none.
TensorId under_root(Trail& trail, TensorId id, double exponent) {
  if (const Op* pow = trail.maker(id, "Pow"); pow != nullptr) {
    if (trail.number(pow->inputs[1]) != exponent) return kNone;
    trail.take(id);
    return pow->inputs[0];
  }
  const Op* sqrt = exponent < 0 ? nullptr : trail.maker(id, "Sqrt");
  if (sqrt == nullptr) return kNone;
  trail.take(id);
  return sqrt->inputs[0];
}

/// Returns what is under the root whose reciprocal `id` is.
TensorId under_reciprocal_root(Trail& trail, TensorId id) {
  TensorId root = kNone;
  if (const Op* reciprocal = trail.maker(id, "Reciprocal")) root = reciprocal->inputs[0];
  if (const Op* div = trail.maker(id, "Div"); div != nullptr && trail.number(div->inputs[0]) == 1) {
    root = div->inputs[1];
  }
  if (root == kNone) return under_root(trail, id, -0.5);
  trail.take(id);
  return under_root(trail, root, 0.5);
}

/// Reads `sum` as the mean and an epsilon.
std::optional<Normalized> with_epsilon(Trail& trail, TensorId of, TensorId sum) {
  const Op* add = sum == kNone ? nullptr : trail.maker(sum, "Add");
  if (add == nullptr) return std::nullopt;
  const auto terms = trail.with_number(*add);
  if (!terms || terms->second < 0) return std::nullopt;
  trail.take(sum);
  return Normalized{of, terms->first, terms->second};
}

/// Reads `id` as a tensor divided by a root, or multiplied by its reciprocal.
std::optional<Normalized> normalized(Trail& trail, TensorId id) {
  if (const Op* div = trail.maker(id, "Div")) {
    trail.take(id);
    return with_epsilon(trail, div->inputs[0], under_root(trail, div->inputs[1], 0.5));
  }
  const Op* mul = trail.maker(id, "Mul");
  if (mul == nullptr) return std::nullopt;
  trail.take(id);
  const std::size_t length = trail.length();
  for (const std::size_t i : {0, 1}) {
    const TensorId under = under_reciprocal_root(trail, mul->inputs[1 - i]);
    if (auto found = with_epsilon(trail, mul->inputs[i], under)) return found;
    trail.back_to(length);
  }
  return std::nullopt;
}

/// Returns the axes that `op`, a ReduceMean, reduces, ascending from 0; none if they are not known.
std::vector<std::int64_t> axes_of(const Graph& graph, const Op& op) {
  std::vector<std::int64_t> axes = op.ints_attribute("axes");
  if (op.inputs.size() > 1 && op.inputs[1] != kNone) {
    const Tensor& given = graph.tensor(op.inputs[1]);
    const bool known = given.kind == TensorKind::kConstant && given.type == DType::kInt64 &&
                       given.constant.per_sample.empty();
    axes = known ? given.constant.ints_at(0) : std::vector<std::int64_t>();
  }
  const auto rank = static_cast<std::int64_t>(graph.tensor(op.inputs[0]).shape.size());
  for (std::int64_t& axis : axes) axis += axis < 0 ? rank : 0;
  std::sort(axes.begin(), axes.end());
  return axes;
}

/// Returns the tensor whose mean over the last axes `id` is, and the first of these axes, counted
/// from the end: -1 for the last alone. The axes stay, with extent 1.
std::optional<std::pair<TensorId, std::int64_t>> mean_of(Trail& trail, TensorId id) {
  const Op* op = trail.maker(id, "ReduceMean");
  if (op == nullptr || op->int_attribute("keepdims", 1) == 0) return std::nullopt;
  const std::vector<std::int64_t> axes = axes_of(trail.graph(), *op);
  const auto rank = static_cast<std::int64_t>(trail.graph().tensor(op->inputs[0]).shape.size());
  if (axes.empty()) return std::nullopt;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != rank - std::ssize(axes) + static_cast<std::int64_t>(i)) return std::nullopt;
  }
  trail.take(id);
  return std::pair(op->inputs[0], axes.front() - rank);
}

/// Returns the tensor whose square `id` is.
TensorId base_of_square(Trail& trail, TensorId id) {
  const Op* pow = trail.maker(id, "Pow");
  const Op* mul = trail.maker(id, "Mul");
  const bool square = pow != nullptr && trail.number(pow->inputs[1]) == 2;
  if (!square && (mul == nullptr || mul->inputs[0] != mul->inputs[1])) return kNone;
  trail.take(id);
  return (square ? pow : mul)->inputs[0];
}

/// Returns x where `id` is x less its mean over the axes from `axis`.
TensorId uncentered(Trail& trail, TensorId id, std::int64_t axis) {
  const Op* sub = trail.maker(id, "Sub");
  if (sub == nullptr) return kNone;
  const auto mean = mean_of(trail, sub->inputs[1]);
  if (!mean || *mean != std::pair(sub->inputs[0], axis)) return kNone;
  trail.take(id);
  return sub->inputs[0];
}

/// Tells whether `id` is an fp32 tensor with the extents of `x` from `axis` on, which do not grow
/// with the batch.
bool fits(const Graph& graph, TensorId id, TensorId x, std::int64_t axis) {
  const Tensor& tensor = graph.tensor(id);
  const Shape& shape = graph.tensor(x).shape;
  return tensor.type == DType::kFp32 && graph.tensor(x).type == DType::kFp32 &&
         !depends_on_batch(tensor.shape) && tensor.shape == Shape(shape.end() + axis, shape.end());
}

/// Finds a scaled normalization whose output is `scaled`; `shift` is added to it, or kNone.
std::optional<Composite> find_norm(Trail& trail, TensorId scaled, TensorId shift, bool centers) {
  const Op* mul = trail.maker(scaled, "Mul");
  if (mul == nullptr) return std::nullopt;
  trail.take(scaled);
  const std::size_t length = trail.length();
  for (const std::size_t i : {0, 1}) {
    trail.back_to(length);
    const TensorId scale = mul->inputs[1 - i];
    const std::optional<Normalized> found = normalized(trail, mul->inputs[i]);
    const auto mean = found ? mean_of(trail, found->mean) : std::nullopt;
    if (!mean) continue;
    const TensorId squared = base_of_square(trail, mean->first);
    if (squared == kNone) continue;
    TensorId x = found->of;
    if (centers) {
      x = uncentered(trail, found->of, mean->second);
      // A variance may center the tensor once more.
      if (x == kNone || (squared != found->of && uncentered(trail, squared, mean->second) != x)) {
        continue;
      }
    } else if (squared != x) {
      continue;
    }
    const Graph& graph = trail.graph();
    if (!fits(graph, scale, x, mean->second) || graph.tensor(x).shape != trail.output().shape ||
        (shift != kNone && !fits(graph, shift, x, mean->second))) {
      continue;
    }
    std::vector<TensorId> inputs = {x, scale};
    if (shift != kNone) inputs.push_back(shift);
    return trail.found(std::move(inputs), {{"axis", mean->second}, {"epsilon", found->epsilon}});
  }
  return std::nullopt;
}

}  // namespace

std::optional<Composite> find_layer_norm(Trail trail) {
  const Op* add = trail.maker(trail.root(), "Add");
  if (add == nullptr) return find_norm(trail, trail.root(), kNone, true);
  for (const std::size_t i : {0, 1}) {
    Trail own = trail;
    if (auto found = find_norm(own, add->inputs[i], add->inputs[1 - i], true)) return found;
  }
  return std::nullopt;
}

std::optional<Composite> find_rms_norm(Trail trail) {
  return find_norm(trail, trail.root(), kNone, false);
}

}  // namespace agpcs
