// SPDX-License-Identifier: Apache-2.0
// Softmax and its relatives.
#include "runtime/torch/ops/ops.h"

namespace agpcs {
namespace {

// Applies `f` along an axis. Since version 13 there is one axis, -1 by default. Earlier versions
// reshape the input to two dimensions, split at an axis, 1 by default.
template <typename F>
Tensors along_axis(const OpCall& call, F&& f) {
  const at::Tensor& x = call.input(0);
  if (call.op.version >= 13) return {f(x, call.axis(-1, x.dim()))};
  const std::int64_t rows = rows_before(x, call.op.int_attribute("axis", 1));
  return {f(x.reshape({rows, -1}), 1).view(x.sizes())};
}

Tensors softmax(const OpCall& call) {
  return along_axis(call,
                    [](const at::Tensor& x, std::int64_t axis) { return at::softmax(x, axis); });
}

Tensors log_softmax(const OpCall& call) {
  return along_axis(
      call, [](const at::Tensor& x, std::int64_t axis) { return at::log_softmax(x, axis); });
}

Tensors hardmax(const OpCall& call) {
  return along_axis(call, [](const at::Tensor& x, std::int64_t axis) {
    return at::zeros_like(x).scatter(axis, at::argmax(x, axis, true), 1.0);
  });
}

constexpr KernelEntry kSoftmaxKernels[] = {
    {"Hardmax", hardmax},
    {"LogSoftmax", log_softmax},
    {"Softmax", softmax},
};

}  // namespace

std::span<const KernelEntry> softmax_kernels() { return kSoftmaxKernels; }

}  // namespace agpcs
