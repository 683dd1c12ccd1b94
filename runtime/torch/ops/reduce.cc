// SPDX-License-Identifier: Apache-2.0
// Reductions, arguments of extremes, cumulative sums and top-k.
#include "runtime/torch/ops/ops.h"

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <numeric>

namespace agpcs {
namespace {

using Axes = std::vector<std::int64_t>;

// The axes to reduce, from an attribute or an input, by version. An empty list means all axes, or
// no axes if the operator says so.
struct Reduction {
  Axes axes;
  bool keep = true;
  bool nothing = false;
};

Reduction reduction_of(const OpCall& call) {
  const std::int64_t rank = call.input(0).dim();
  Reduction r{wrap_axes(call.ints_of("axes", 1), rank), call.op.int_attribute("keepdims", 1) != 0,
              false};
  if (!r.axes.empty()) return r;
  r.nothing = call.op.int_attribute("noop_with_empty_axes", 0) != 0;
  r.axes.resize(static_cast<std::size_t>(rank));
  std::iota(r.axes.begin(), r.axes.end(), 0);
  return r;
}

at::Tensor sum_over(const at::Tensor& x, const Reduction& r) {
  return at::sum(x, r.axes, r.keep, x.scalar_type());
}

template <at::Tensor (*F)(const at::Tensor&, const Reduction&)>
Tensors reduce(const OpCall& call) {
  const Reduction r = reduction_of(call);
  return {r.nothing ? call.input(0) : F(call.input(0), r)};
}

at::Tensor mean_over(const at::Tensor& x, const Reduction& r) {
  if (x.is_floating_point()) return at::mean(x, r.axes, r.keep);
  return at::mean(x.to(at::kDouble), r.axes, r.keep).to(x.scalar_type());
}

// Reduces one axis at a time, from the last, so that the other axes keep their numbers.
template <typename F>
at::Tensor one_by_one(at::Tensor x, const Reduction& r, F&& f) {
  Axes axes = r.axes;
  std::sort(axes.rbegin(), axes.rend());
  for (std::int64_t axis : axes) x = f(x, axis, r.keep);
  return x;
}

at::Tensor product_over(const at::Tensor& x, const Reduction& r) {
  return one_by_one(x, r, [](const at::Tensor& t, std::int64_t axis, bool keep) {
    return at::prod(t, axis, keep, t.scalar_type());
  });
}

// Returns the maximum (or minimum) of no numbers, which ATen refuses: the least (or greatest)
// number.
at::Tensor extreme_of_nothing(const at::Tensor& x, const Reduction& r, bool greatest) {
  const at::Tensor like = sum_over(x, r);
  if (like.is_floating_point()) {
    const double infinity = std::numeric_limits<double>::infinity();
    return at::full_like(like, greatest ? infinity : -infinity);
  }
  if (like.scalar_type() == at::kBool) return at::full_like(like, greatest);
  throw KernelError("an extreme of no integers");
}

at::Tensor max_over(const at::Tensor& x, const Reduction& r) {
  return x.numel() == 0 ? extreme_of_nothing(x, r, false) : at::amax(x, r.axes, r.keep);
}
at::Tensor min_over(const at::Tensor& x, const Reduction& r) {
  return x.numel() == 0 ? extreme_of_nothing(x, r, true) : at::amin(x, r.axes, r.keep);
}
at::Tensor l1_over(const at::Tensor& x, const Reduction& r) { return sum_over(at::abs(x), r); }
at::Tensor squares_over(const at::Tensor& x, const Reduction& r) { return sum_over(x * x, r); }
at::Tensor l2_over(const at::Tensor& x, const Reduction& r) { return at::sqrt(squares_over(x, r)); }
at::Tensor log_sum_over(const at::Tensor& x, const Reduction& r) { return at::log(sum_over(x, r)); }
at::Tensor log_sum_exp_over(const at::Tensor& x, const Reduction& r) {
  return at::logsumexp(x, r.axes, r.keep);
}

template <at::Tensor (*F)(const at::Tensor&, c10::optional<std::int64_t>, bool)>
Tensors arg_extreme(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t axis = call.axis(0, x.dim());
  const bool keep = call.op.int_attribute("keepdims", 1) != 0;
  if (call.op.int_attribute("select_last_index", 0) == 0) return {F(x, axis, keep)};
  return {x.size(axis) - 1 - F(at::flip(x, {axis}), axis, keep)};
}

Tensors cumulative_sum(const OpCall& call) {
  at::Tensor x = call.input(0);
  const std::int64_t axis = wrap_axis(call.ints(1).at(0), x.dim());
  const bool reverse = call.op.int_attribute("reverse", 0) != 0;
  if (reverse) x = at::flip(x, {axis});
  at::Tensor sum = at::cumsum(x, axis, x.scalar_type());
  if (call.op.int_attribute("exclusive", 0) != 0) sum = sum - x;
  return {reverse ? at::flip(sum, {axis}) : sum};
}

Tensors cumulative_product(const OpCall& call) {
  at::Tensor x = call.input(0);
  const std::int64_t axis = wrap_axis(call.ints(1).at(0), x.dim());
  const bool reverse = call.op.int_attribute("reverse", 0) != 0;
  if (reverse) x = at::flip(x, {axis});
  if (call.op.int_attribute("exclusive", 0) != 0 && x.size(axis) > 0) {
    const at::Tensor one = at::ones_like(x.narrow(axis, 0, 1));
    x = at::cat({one, x.narrow(axis, 0, x.size(axis) - 1)}, axis);
  }
  const at::Tensor product = at::cumprod(x, axis, x.scalar_type());
  return {reverse ? at::flip(product, {axis}) : product};
}

Tensors top_k(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t axis = call.axis(-1, x.dim());
  const std::int64_t k = call.has(1) ? call.ints(1).at(0) : call.op.int_attribute("k", 1);
  const bool largest = call.op.int_attribute("largest", 1) != 0;
  // Among equal values the lower index must come first, so this uses a stable sort in place of
  // ATen's topk.
  auto [values, indices] = at::sort(x, /*stable=*/true, axis, largest);
  return {values.narrow(axis, 0, k), indices.narrow(axis, 0, k)};
}

constexpr KernelEntry kReductionKernels[] = {
    {"ArgMax", arg_extreme<at::argmax>},
    {"ArgMin", arg_extreme<at::argmin>},
    {"CumProd", cumulative_product},
    {"CumSum", cumulative_sum},
    {"ReduceL1", reduce<l1_over>},
    {"ReduceL2", reduce<l2_over>},
    {"ReduceLogSum", reduce<log_sum_over>},
    {"ReduceLogSumExp", reduce<log_sum_exp_over>},
    {"ReduceMax", reduce<max_over>},
    {"ReduceMean", reduce<mean_over>},
    {"ReduceMin", reduce<min_over>},
    {"ReduceProd", reduce<product_over>},
    {"ReduceSum", reduce<sum_over>},
    {"ReduceSumSquare", reduce<squares_over>},
    {"TopK", top_k},
};

}  // namespace

std::span<const KernelEntry> reduction_kernels() { return kReductionKernels; }

}  // namespace agpcs
