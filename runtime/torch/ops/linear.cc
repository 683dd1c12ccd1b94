// SPDX-License-Identifier: Apache-2.0
// Matrix products.
#include "runtime/torch/ops/ops.h"
#include "runtime/torch/put_off.h"

namespace agpcs {
namespace {

bool puts_off(const OpCall& call, const at::Tensor& factor, const at::Tensor& weight) {
  return call.put_off != nullptr && factor.dim() > 1 && weight.dim() == 2;
}

Tensors matmul(const OpCall& call) {
  const at::Tensor &a = call.input(0), &b = call.input(1);
  return {puts_off(call, a, b) ? put_off_product(call, a, b, 1) : at::matmul(a, b)};
}

Tensors gemm(const OpCall& call) {
  const double alpha = call.op.float_attribute("alpha", 1),
               beta = call.op.float_attribute("beta", 1);
  at::Tensor a = call.input(0), b = call.input(1);
  if (call.op.int_attribute("transA", 0) != 0) a = a.t();
  if (call.op.int_attribute("transB", 0) != 0) b = b.t();
  if (puts_off(call, a, b)) {
    at::Tensor product = put_off_product(call, a, b, alpha);
    return {call.has(2) ? product.add_(call.in[2], beta) : product};
  }
  if (call.has(2)) return {at::addmm(call.in[2], a, b, beta, alpha)};
  const at::Tensor product = at::mm(a, b);
  return {alpha == 1 ? product : product * alpha};
}

Tensors einsum(const OpCall& call) {
  return {at::einsum(call.op.string_attribute("equation", ""), call.in)};
}

Tensors det(const OpCall& call) { return {at::det(call.input(0))}; }

constexpr KernelEntry kLinearKernels[] = {
    {"Det", det},
    {"Einsum", einsum},
    {"Gemm", gemm},
    {"MatMul", matmul},
};

}  // namespace

std::span<const KernelEntry> linear_kernels() { return kLinearKernels; }

}  // namespace agpcs
