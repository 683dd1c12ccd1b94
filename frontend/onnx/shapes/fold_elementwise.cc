// SPDX-License-Identifier: Apache-2.0
// Folds elementwise operators with NumPy's broadcasting.
#include "frontend/onnx/attributes.h"
#include "frontend/onnx/shapes/fold.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace agpcs::frontend {
namespace {

using onnx::TensorProto;

std::optional<Dims> broadcast_dims(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 0; i < out.size(); ++i) {  // from the last axis
    const std::int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const std::int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    if (x > kFoldLimit || y > kFoldLimit) return std::nullopt;
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  const std::optional<std::int64_t> count = element_count(out);
  if (!count || *count > kFoldLimit) return std::nullopt;
  return out;
}

/// Returns, for each element of `out`, the index of the element of `in` that broadcasts to it.
std::vector<std::size_t> broadcast_index(const Dims& in, const Dims& out) {
  std::vector<std::size_t> index{0};
  std::size_t stride = 1;
  std::vector<std::pair<std::size_t, std::size_t>> axes;  // extent, stride of `in`; last axis first
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t extent = i < in.size() ? in[in.size() - 1 - i] : 1;
    axes.emplace_back(static_cast<std::size_t>(out[out.size() - 1 - i]), extent == 1 ? 0 : stride);
    stride *= static_cast<std::size_t>(extent);
  }
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    std::vector<std::size_t> next;
    next.reserve(index.size() * axis->first);
    for (const std::size_t base : index) {
      for (std::size_t i = 0; i < axis->first; ++i) next.push_back(base + i * axis->second);
    }
    index = std::move(next);
  }
  return index;
}

/// Rounds to the precision of the type.
double rounded(double value, int type) {
  return type == TensorProto::FLOAT ? static_cast<double>(static_cast<float>(value)) : value;
}

struct Binary {
  std::string_view type;
  bool compares;  ///< its result is bool
  /// These return false if there is no result (division by zero, overflow).
  bool (*ints)(std::int64_t, std::int64_t, std::int64_t&);
  bool (*floats)(double, double, double&);
};

using Int = std::int64_t;
bool divide(Int a, Int b, Int& r) {
  if (b == 0 || (a == std::numeric_limits<Int>::min() && b == -1)) return false;
  r = a / b;
  return true;
}
bool modulo(Int a, Int b, Int& r) {  // has the sign of the divisor, as in Python
  if (b == 0 || b == -1) return b != 0 && (r = 0, true);
  r = a % b;
  if (r != 0 && (r < 0) != (b < 0)) r += b;
  return true;
}
bool power(Int a, Int b, Int& r) {
  if (b < 0 || b > 64) return false;
  r = 1;
  for (Int i = 0; i < b; ++i) {
    if (__builtin_mul_overflow(r, a, &r)) return false;
  }
  return true;
}

constexpr Binary kBinaries[] = {
    {"Add", false, [](Int a, Int b, Int& r) { return !__builtin_add_overflow(a, b, &r); },
     [](double a, double b, double& r) { return r = a + b, true; }},
    {"Sub", false, [](Int a, Int b, Int& r) { return !__builtin_sub_overflow(a, b, &r); },
     [](double a, double b, double& r) { return r = a - b, true; }},
    {"Mul", false, [](Int a, Int b, Int& r) { return !__builtin_mul_overflow(a, b, &r); },
     [](double a, double b, double& r) { return r = a * b, true; }},
    {"Div", false, divide, [](double a, double b, double& r) { return r = a / b, b != 0; }},
    {"Mod", false, modulo,
     [](double a, double b, double& r) { return r = std::fmod(a, b), b != 0; }},
    {"Pow", false, power, [](double a, double b, double& r) { return r = std::pow(a, b), true; }},
    {"Min", false, [](Int a, Int b, Int& r) { return r = std::min(a, b), true; },
     [](double a, double b, double& r) { return r = std::min(a, b), true; }},
    {"Max", false, [](Int a, Int b, Int& r) { return r = std::max(a, b), true; },
     [](double a, double b, double& r) { return r = std::max(a, b), true; }},
    {"Equal", true, [](Int a, Int b, Int& r) { return r = a == b, true; },
     [](double a, double b, double& r) { return r = a == b, true; }},
    {"Greater", true, [](Int a, Int b, Int& r) { return r = a > b, true; },
     [](double a, double b, double& r) { return r = a > b, true; }},
    {"GreaterOrEqual", true, [](Int a, Int b, Int& r) { return r = a >= b, true; },
     [](double a, double b, double& r) { return r = a >= b, true; }},
    {"Less", true, [](Int a, Int b, Int& r) { return r = a < b, true; },
     [](double a, double b, double& r) { return r = a < b, true; }},
    {"LessOrEqual", true, [](Int a, Int b, Int& r) { return r = a <= b, true; },
     [](double a, double b, double& r) { return r = a <= b, true; }},
    {"And", true, [](Int a, Int b, Int& r) { return r = (a != 0 && b != 0), true; }, nullptr},
    {"Or", true, [](Int a, Int b, Int& r) { return r = (a != 0 || b != 0), true; }, nullptr},
    {"Xor", true, [](Int a, Int b, Int& r) { return r = ((a != 0) != (b != 0)), true; }, nullptr},
};

const Binary* find_binary(std::string_view type) {
  const auto it = std::find_if(std::begin(kBinaries), std::end(kBinaries),
                               [&](const Binary& b) { return b.type == type; });
  return it == std::end(kBinaries) ? nullptr : it;
}

std::optional<Dense> apply(const Binary& op, const Dense& a, const Dense& b) {
  const bool mixed_power = op.type == "Pow" && a.type != b.type;
  if (a.type != b.type || mixed_power) return std::nullopt;
  const std::optional<Dims> dims = broadcast_dims(a.dims, b.dims);
  if (!dims || (a.floating() && op.floats == nullptr)) return std::nullopt;
  Dense out;
  out.type = op.compares ? static_cast<int>(TensorProto::BOOL) : a.type;
  out.dims = *dims;
  out.known = true;
  const std::vector<std::size_t> ia = broadcast_index(a.dims, *dims);
  const std::vector<std::size_t> ib = broadcast_index(b.dims, *dims);
  for (std::size_t i = 0; i < ia.size(); ++i) {
    Int integer = 0;
    double real = 0;
    if (a.floating()) {
      if (!op.floats(a.floats[ia[i]], b.floats[ib[i]], real)) return std::nullopt;
    } else if (!op.ints(a.ints[ia[i]], b.ints[ib[i]], integer)) {
      return std::nullopt;
    }
    if (out.floating()) {
      out.floats.push_back(rounded(real, out.type));
    } else {
      out.ints.push_back(a.floating() ? static_cast<Int>(real) : integer);
    }
  }
  return out;
}

std::optional<Dense> fold_binary(const FoldCase& c) {
  const Binary* op = find_binary(c.node.op_type());
  const bool float_mod = c.node.op_type() == "Mod" && int_of(c.node, "fmod", 0) != 0;
  const Dense* first = c.input(0);
  if (op == nullptr || first == nullptr || c.inputs.empty()) return std::nullopt;
  if (c.node.op_type() == "Mod" && first->floating() != float_mod) return std::nullopt;
  if (c.opset < 7) return std::nullopt;  // older opsets have other broadcasting rules
  Dense result = *first;
  for (std::size_t i = 1; i < c.inputs.size(); ++i) {  // Min and Max take any number
    const Dense* next = c.input(i);
    if (next == nullptr) return std::nullopt;
    std::optional<Dense> joined = apply(*op, result, *next);
    if (!joined) return std::nullopt;
    result = std::move(*joined);
  }
  return result;
}

struct Unary {
  std::string_view type;
  bool (*ints)(Int, Int&);
  double (*floats)(double);
};

constexpr Unary kUnaries[] = {
    {"Neg", [](Int a, Int& r) { return !__builtin_sub_overflow(Int{0}, a, &r); },
     [](double a) { return -a; }},
    {"Abs",
     [](Int a, Int& r) { return a < 0 ? !__builtin_sub_overflow(Int{0}, a, &r) : (r = a, true); },
     [](double a) { return std::fabs(a); }},
    {"Not", [](Int a, Int& r) { return r = a == 0, true; }, nullptr},
    {"Sign", [](Int a, Int& r) { return r = (a > 0) - (a < 0), true; },
     [](double a) { return static_cast<double>((a > 0) - (a < 0)); }},
    {"Floor", nullptr, [](double a) { return std::floor(a); }},
    {"Ceil", nullptr, [](double a) { return std::ceil(a); }},
    {"Round", nullptr, [](double a) { return std::nearbyint(a); }},
    {"Sqrt", nullptr, [](double a) { return std::sqrt(a); }},
    {"Exp", nullptr, [](double a) { return std::exp(a); }},
    {"Log", nullptr, [](double a) { return std::log(a); }},
    {"Reciprocal", nullptr, [](double a) { return 1 / a; }},
    {"Sin", nullptr, [](double a) { return std::sin(a); }},
    {"Cos", nullptr, [](double a) { return std::cos(a); }},
};

const Unary* find_unary(std::string_view type) {
  const auto it = std::find_if(std::begin(kUnaries), std::end(kUnaries),
                               [&](const Unary& u) { return u.type == type; });
  return it == std::end(kUnaries) ? nullptr : it;
}

std::optional<Dense> fold_unary(const FoldCase& c) {
  const Unary* op = find_unary(c.node.op_type());
  const Dense* in = c.input(0);
  if (op == nullptr || in == nullptr) return std::nullopt;
  if (in->floating() ? op->floats == nullptr : op->ints == nullptr) return std::nullopt;
  Dense out = *in;
  for (double& value : out.floats) value = rounded(op->floats(value), out.type);
  for (Int& value : out.ints) {
    if (!op->ints(value, value)) return std::nullopt;
  }
  return out;
}

std::optional<Dense> fold_cast(const FoldCase& c) {
  const Dense* in = c.input(0);
  if (in == nullptr) return std::nullopt;
  Dense out;
  out.type = c.node.op_type() == "CastLike" && c.has_input(1)
                 ? c.inputs[1]->type
                 : static_cast<int>(int_of(c.node, "to", TensorProto::UNDEFINED));
  out.dims = in->dims;
  out.known = is_evaluated_type(out.type);
  if (!out.known) return std::nullopt;
  constexpr double kExact = 9.0e18;
  for (const Int value : in->ints) {
    if (out.floating()) {
      out.floats.push_back(rounded(static_cast<double>(value), out.type));
    } else {
      out.ints.push_back(out.type == TensorProto::BOOL ? value != 0 : value);
    }
  }
  for (const double value : in->floats) {
    if (out.floating()) {
      out.floats.push_back(rounded(value, out.type));
      continue;
    }
    if (!(std::fabs(value) < kExact)) return std::nullopt;
    out.ints.push_back(out.type == TensorProto::BOOL ? value != 0 : static_cast<Int>(value));
  }
  return out;
}

std::optional<Dense> fold_where(const FoldCase& c) {
  const Dense* condition = c.input(0);
  const Dense* yes = c.input(1);
  const Dense* no = c.input(2);
  if (condition == nullptr || yes == nullptr || no == nullptr || yes->type != no->type) {
    return std::nullopt;
  }
  if (condition->floating()) return std::nullopt;
  std::optional<Dims> dims = broadcast_dims(yes->dims, no->dims);
  if (dims) dims = broadcast_dims(*dims, condition->dims);
  if (!dims) return std::nullopt;
  Dense out;
  out.type = yes->type;
  out.dims = *dims;
  out.known = true;
  const std::vector<std::size_t> ic = broadcast_index(condition->dims, *dims);
  const std::vector<std::size_t> iy = broadcast_index(yes->dims, *dims);
  const std::vector<std::size_t> in = broadcast_index(no->dims, *dims);
  for (std::size_t i = 0; i < ic.size(); ++i) {
    const bool take = condition->ints[ic[i]] != 0;
    const Dense& from = take ? *yes : *no;
    const std::size_t at = take ? iy[i] : in[i];
    if (out.floating()) {
      out.floats.push_back(from.floats[at]);
    } else {
      out.ints.push_back(from.ints[at]);
    }
  }
  return out;
}

std::optional<Dense> fold_identity(const FoldCase& c) {
  return c.input(0) != nullptr ? std::optional(*c.input(0)) : std::nullopt;
}

std::optional<Dense> fold_expand(const FoldCase& c) {
  const Dense* in = c.input(0);
  const std::optional<std::vector<Int>> target = c.ints(1, "shape");
  if (in == nullptr || !target || c.inputs.size() < 2) return std::nullopt;
  const std::optional<Dims> dims = broadcast_dims(in->dims, *target);
  if (!dims) return std::nullopt;
  Dense out;
  out.type = in->type;
  out.dims = *dims;
  out.known = true;
  for (const std::size_t i : broadcast_index(in->dims, *dims)) {
    if (out.floating()) {
      out.floats.push_back(in->floats[i]);
    } else {
      out.ints.push_back(in->ints[i]);
    }
  }
  return out;
}

}  // namespace

Folder find_elementwise(std::string_view type) {
  if (find_binary(type) != nullptr) return fold_binary;
  if (find_unary(type) != nullptr) return fold_unary;
  if (type == "Cast" || type == "CastLike") return fold_cast;
  if (type == "Where") return fold_where;
  if (type == "Identity") return fold_identity;
  if (type == "Expand") return fold_expand;
  return nullptr;
}

}  // namespace agpcs::frontend
