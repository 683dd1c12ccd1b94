// SPDX-License-Identifier: Apache-2.0
// Matrix products.
#include "runtime/torch/ops/ops.h"

namespace agpcs {
namespace {

Tensors matmul(const OpCall& call) { return {at::matmul(call.input(0), call.input(1))}; }

Tensors gemm(const OpCall& call) {
  const double alpha = call.op.float_attribute("alpha", 1),
               beta = call.op.float_attribute("beta", 1);
  at::Tensor a = call.input(0), b = call.input(1);
  if (call.op.int_attribute("transA", 0) != 0) a = a.t();
  if (call.op.int_attribute("transB", 0) != 0) b = b.t();
  if (call.has(2)) return {at::addmm(call.in[2], a, b, beta, alpha)};
  const at::Tensor product = at::mm(a, b);
  return {alpha == 1 ? product : product * alpha};
}

Tensors einsum(const OpCall& call) {
  return {at::einsum(call.op.string_attribute("equation", ""), call.in)};
}

Tensors det(const OpCall& call) { return {at::det(call.input(0))}; }

constexpr KernelEntry kTable[] = {
    {"Det", det},
    {"Einsum", einsum},
    {"Gemm", gemm},
    {"MatMul", matmul},
};

}  // namespace

std::span<const KernelEntry> linear_kernels() { return kTable; }

}  // namespace agpcs
