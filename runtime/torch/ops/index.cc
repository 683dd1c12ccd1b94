// SPDX-License-Identifier: Apache-2.0
// Operators that read or write at computed places.
#include "runtime/torch/ops/ops.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>

namespace agpcs {
namespace {

using Ints = std::vector<std::int64_t>;

at::Tensor wrapped(const at::Tensor& indices, std::int64_t size) {
  const at::Tensor i = indices.to(at::kLong);
  return at::where(i < 0, i + size, i);
}

// Returns whether input `i` is a constant without negative numbers.
bool counts_from_the_front(const OpCall& call, std::size_t i) {
  if (call.host == nullptr || i >= call.host->size() || !(*call.host)[i].defined()) return false;
  return !(*call.host)[i].lt(0).any().item<bool>();
}

Tensors gather(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t axis = call.axis(0, x.dim());
  const at::Tensor i = (counts_from_the_front(call, 1) ? call.input(1).to(at::kLong)
                                                       : wrapped(call.input(1), x.size(axis)))
                           .to(x.device());
  if (axis == 0 && x.dim() == 2) return {at::embedding(x, i)};
  Ints shape = x.sizes().vec();
  shape.erase(shape.begin() + axis);
  const Ints middle = i.sizes().vec();
  shape.insert(shape.begin() + axis, middle.begin(), middle.end());
  return {x.index_select(axis, i.reshape({-1})).reshape(shape)};
}

Tensors gather_elements(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t axis = call.axis(0, x.dim());
  return {at::gather(x, axis, wrapped(call.input(1), x.size(axis)))};
}

// Returns positions in `x`, viewed as [prod(first k extents), rest], from tuples of k indices.
at::Tensor linear_positions(const at::Tensor& tuples, const Ints& extents) {
  at::Tensor position;
  for (std::size_t k = 0; k < extents.size(); ++k) {
    const at::Tensor i = wrapped(tuples.select(-1, static_cast<std::int64_t>(k)), extents[k]);
    position = position.defined() ? position * extents[k] + i : i;
  }
  return position.reshape({-1});
}

Ints joined(const Ints& a, const Ints& b) {
  Ints all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

// Computes GatherND. The batch axes become one, whose index goes before each tuple.
Tensors gather_nd(const OpCall& call) {
  at::Tensor x = call.input(0);
  at::Tensor tuples = call.input(1).to(at::kLong);
  const std::int64_t batch_axes = call.op.int_attribute("batch_dims", 0);
  const std::int64_t k = tuples.size(-1);
  const Ints x_dims = x.sizes().vec(), t_dims = tuples.sizes().vec();
  const Ints tail(x_dims.begin() + batch_axes + k, x_dims.end());
  const Ints out = joined(Ints(t_dims.begin(), t_dims.end() - 1), tail);
  const std::int64_t batches =
      c10::multiply_integers(Ints(x_dims.begin(), x_dims.begin() + batch_axes));
  tuples = tuples.reshape({batches, -1, k});
  const at::Tensor batch =
      at::arange(batches, tuples.options()).view({-1, 1, 1}).expand({-1, tuples.size(1), 1});
  tuples = at::cat({batch, tuples}, -1);
  const Ints extents =
      joined({batches}, Ints(x_dims.begin() + batch_axes, x_dims.begin() + batch_axes + k));
  x = x.reshape({c10::multiply_integers(extents), c10::multiply_integers(tail)});
  return {x.index_select(0, linear_positions(tuples, extents)).reshape(out)};
}

at::Tensor scatter_along(const at::Tensor& x, std::int64_t axis, const at::Tensor& i,
                         const at::Tensor& updates, const std::string& reduction) {
  if (reduction == "none") return at::scatter(x, axis, i, updates);
  if (reduction == "add") return at::scatter_add(x, axis, i, updates);
  if (reduction == "mul") return at::scatter_reduce(x, axis, i, updates, "prod");
  if (reduction == "max") return at::scatter_reduce(x, axis, i, updates, "amax");
  if (reduction == "min") return at::scatter_reduce(x, axis, i, updates, "amin");
  throw KernelError(fmt::format("reduction '{}'", reduction));
}

Tensors scatter_elements(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::int64_t axis = call.axis(0, x.dim());
  return {scatter_along(x, axis, wrapped(call.input(1), x.size(axis)), call.input(2),
                        call.op.string_attribute("reduction", "none"))};
}

Tensors scatter_nd(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const at::Tensor tuples = call.input(1).to(at::kLong);
  const std::int64_t k = tuples.size(-1);
  const Ints dims = x.sizes().vec();
  const Ints extents(dims.begin(), dims.begin() + k);
  const std::int64_t width = c10::multiply_integers(Ints(dims.begin() + k, dims.end()));
  const at::Tensor flat = x.reshape({c10::multiply_integers(extents), width});
  const at::Tensor rows = linear_positions(tuples, extents).unsqueeze(1).expand({-1, width});
  const at::Tensor updates = call.input(2).reshape({-1, width});
  const at::Tensor y =
      scatter_along(flat, 0, rows, updates, call.op.string_attribute("reduction", "none"));
  return {y.reshape(dims)};
}

Tensors one_hot(const OpCall& call) {
  const at::Tensor values = call.input(2);
  const std::int64_t depth = static_cast<std::int64_t>(call.number(1));
  const at::Tensor i = wrapped(call.input(0), depth);
  const std::int64_t axis = wrap_axis(call.op.int_attribute("axis", -1), i.dim() + 1);
  Ints shape(static_cast<std::size_t>(i.dim() + 1), 1);
  shape[static_cast<std::size_t>(axis)] = depth;
  const at::Tensor classes = at::arange(depth, i.options()).view(shape);
  return {at::where(i.unsqueeze(axis) == classes, values.select(0, 1), values.select(0, 0))};
}

Tensors compress(const OpCall& call) {
  at::Tensor x = call.input(0);
  std::int64_t axis = 0;
  if (call.has_attribute("axis")) {
    axis = call.axis(0, x.dim());
  } else {
    x = x.reshape({-1});
  }
  return {x.index_select(axis, at::nonzero(call.input(1)).reshape({-1}))};
}

Tensors non_zero(const OpCall& call) { return {at::nonzero(call.input(0)).t().contiguous()}; }

Tensors range(const OpCall& call) {
  const at::Tensor& start = call.input(0);
  const double first = call.number(0), limit = call.number(1), delta = call.number(2);
  const auto count = static_cast<std::int64_t>(std::max(std::ceil((limit - first) / delta), 0.0));
  return {at::arange(count, start.options()) * call.input(2) + start};
}

Tensors eye_like(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  at::ScalarType type = x.scalar_type();
  if (call.has_attribute("dtype")) type = computed_type_of_onnx(call.op.int_attribute("dtype", 1));
  const std::int64_t k = call.op.int_attribute("k", 0);
  at::Tensor y = at::zeros({x.size(0), x.size(1)}, x.options().dtype(type));
  y.diagonal(k).fill_(1);
  return {y};
}

Tensors reverse_sequence(const OpCall& call) {
  const std::int64_t time = call.op.int_attribute("time_axis", 0),
                     batch = call.op.int_attribute("batch_axis", 1);
  const at::Tensor x = call.input(0).movedim({time, batch}, {0, 1});
  const at::Tensor t = at::arange(x.size(0), x.options().dtype(at::kLong)).unsqueeze(1);
  const at::Tensor lengths = call.input(1).to(at::kLong).unsqueeze(0);
  const at::Tensor source = at::where(t < lengths, lengths - 1 - t, t);
  const at::Tensor columns = at::arange(x.size(1), source.options()).unsqueeze(0).expand_as(source);
  const at::Tensor y =
      x.flatten(0, 1).index_select(0, (source * x.size(1) + columns).reshape({-1}));
  return {y.view(x.sizes()).movedim({0, 1}, {time, batch})};
}

constexpr KernelEntry kIndexKernels[] = {
    {"Compress", compress},
    {"EyeLike", eye_like},
    {"Gather", gather},
    {"GatherElements", gather_elements},
    {"GatherND", gather_nd},
    {"NonZero", non_zero},
    {"OneHot", one_hot},
    {"Range", range},
    {"ReverseSequence", reverse_sequence},
    {"Scatter", scatter_elements},
    {"ScatterElements", scatter_elements},
    {"ScatterND", scatter_nd},
};

}  // namespace

std::span<const KernelEntry> index_kernels() { return kIndexKernels; }

}  // namespace agpcs
