// SPDX-License-Identifier: Apache-2.0
// Elementwise arithmetic, comparison, logic and casts, with NumPy broadcasting.
#include "runtime/torch/ops/ops.h"

#include <limits>

namespace agpcs {
namespace {

bool is_integer(const at::Tensor& t) { return c10::isIntegralType(t.scalar_type(), true); }

template <at::Tensor (*F)(const at::Tensor&)>
Tensors unary(const OpCall& call) {
  return {F(call.input(0))};
}

template <at::Tensor (*F)(const at::Tensor&, const at::Tensor&)>
Tensors binary(const OpCall& call) {
  return {F(call.input(0), call.input(1))};
}

template <at::Tensor (*F)(const at::Tensor&, const at::Tensor&)>
Tensors fold(const OpCall& call) {
  at::Tensor result = call.input(0);
  for (std::size_t i = 1; i < call.in.size(); ++i) result = F(result, call.input(i));
  return {result};
}

at::Tensor add2(const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }
at::Tensor sub2(const at::Tensor& a, const at::Tensor& b) { return at::sub(a, b); }

at::Tensor divide(const at::Tensor& a, const at::Tensor& b) {
  return is_integer(a) ? at::div(a, b, "trunc") : at::div(a, b);
}

Tensors mod(const OpCall& call) {
  const bool like_c = call.op.int_attribute("fmod", 0) != 0;
  return {like_c ? at::fmod(call.input(0), call.input(1))
                 : at::remainder(call.input(0), call.input(1))};
}

Tensors power(const OpCall& call) {
  const at::Tensor& base = call.input(0);
  const at::Tensor& exponent = call.input(1);
  const bool known = call.host != nullptr && call.host->size() > 1 && (*call.host)[1].defined();
  if (known && exponent.numel() == 1 && exponent.dim() <= base.dim() && base.is_floating_point()) {
    return {at::pow(base, call.number(1))};  // autograd does not keep the result
  }
  return {at::pow(base, exponent).to(base.scalar_type())};
}

Tensors mean_of_inputs(const OpCall& call) {
  return {fold<add2>(call)[0] / static_cast<double>(call.in.size())};
}

// Computes BitShift. Beyond the type's width nothing but the sign is left; ATen masks such a shift.
Tensors bit_shift(const OpCall& call) {
  const bool left = call.op.string_attribute("direction", "LEFT") == "LEFT";
  const at::Tensor &a = call.input(0), &b = call.input(1);
  const auto width = static_cast<std::int64_t>(8 * c10::elementSize(a.scalar_type()));
  const at::Tensor outside = at::logical_or(b < 0, b >= width);
  const at::Tensor by = b.masked_fill(outside, left ? 0 : width - 1);
  if (!left) return {at::__rshift__(a, by)};
  const at::Tensor shifted = at::__lshift__(a, by);
  return {at::where(outside, at::zeros_like(shifted), shifted)};
}

// Computes Clip. Its bounds are attributes before version 11 and inputs since then.
Tensors clip(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  at::Tensor low = call.input_or_none(1), high = call.input_or_none(2);
  if (call.has_attribute("min")) low = at::full({}, call.op.float_attribute("min", 0), x.options());
  if (call.has_attribute("max"))
    high = at::full({}, call.op.float_attribute("max", 0), x.options());
  if (!low.defined() && !high.defined()) return {x};
  const auto bound = [](const at::Tensor& b) {
    return b.defined() ? c10::optional<at::Tensor>(b) : c10::nullopt;
  };
  return {at::clamp(x, bound(low), bound(high))};
}

Tensors cast(const OpCall& call) {
  return {call.input(0).to(computed_type_of_onnx(call.op.int_attribute("to", 0)))};
}

Tensors cast_like(const OpCall& call) { return {call.input(0).to(call.input(1).scalar_type())}; }

Tensors is_inf(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const bool negative = call.op.int_attribute("detect_negative", 1) != 0;
  const bool positive = call.op.int_attribute("detect_positive", 1) != 0;
  if (negative && positive) return {at::isinf(x)};
  if (negative) return {at::isneginf(x)};
  return {positive ? at::isposinf(x) : at::zeros_like(x, at::kBool)};
}

Tensors where(const OpCall& call) {
  return {at::where(call.input(0).to(at::kBool), call.input(1), call.input(2))};
}

Tensors sign(const OpCall& call) { return {at::sign(call.input(0))}; }

constexpr KernelEntry kElementwiseKernels[] = {
    {"Abs", unary<at::abs>},
    {"Acos", unary<at::acos>},
    {"Acosh", unary<at::acosh>},
    {"Add", binary<add2>},
    {"And", binary<at::logical_and>},
    {"Asin", unary<at::asin>},
    {"Asinh", unary<at::asinh>},
    {"Atan", unary<at::atan>},
    {"Atanh", unary<at::atanh>},
    {"BitShift", bit_shift},
    {"BitwiseAnd", binary<at::bitwise_and>},
    {"BitwiseNot", unary<at::bitwise_not>},
    {"BitwiseOr", binary<at::bitwise_or>},
    {"BitwiseXor", binary<at::bitwise_xor>},
    {"Cast", cast},
    {"CastLike", cast_like},
    {"Ceil", unary<at::ceil>},
    {"Clip", clip},
    {"Cos", unary<at::cos>},
    {"Cosh", unary<at::cosh>},
    {"Div", binary<divide>},
    {"Equal", binary<at::eq>},
    {"Erf", unary<at::erf>},
    {"Exp", unary<at::exp>},
    {"Floor", unary<at::floor>},
    {"Greater", binary<at::gt>},
    {"GreaterOrEqual", binary<at::ge>},
    {"IsInf", is_inf},
    {"IsNaN", unary<at::isnan>},
    {"Less", binary<at::lt>},
    {"LessOrEqual", binary<at::le>},
    {"Log", unary<at::log>},
    {"Max", fold<at::maximum>},
    {"Mean", mean_of_inputs},
    {"Min", fold<at::minimum>},
    {"Mod", mod},
    {"Mul", binary<at::mul>},
    {"Neg", unary<at::neg>},
    {"Not", unary<at::logical_not>},
    {"Or", binary<at::logical_or>},
    {"Pow", power},
    {"Reciprocal", unary<at::reciprocal>},
    {"Round", unary<at::round>},
    {"Sign", sign},
    {"Sin", unary<at::sin>},
    {"Sinh", unary<at::sinh>},
    {"Sqrt", unary<at::sqrt>},
    {"Sub", binary<sub2>},
    {"Sum", fold<add2>},
    {"Tan", unary<at::tan>},
    {"Where", where},
    {"Xor", binary<at::logical_xor>},
};

}  // namespace

std::span<const KernelEntry> elementwise_kernels() { return kElementwiseKernels; }

}  // namespace agpcs
