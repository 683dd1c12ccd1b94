// SPDX-License-Identifier: Apache-2.0
// Gelu and Swish: x times a function of a polynomial in x, in whichever order exporters multiply.
#include "ir/graph/fuse/pattern.h"

#include <array>
#include <cmath>
#include <numbers>

namespace agpcs {
namespace {

/// Coefficients of 1, x, x^2 and x^3.
using Polynomial = std::array<double, 4>;
constexpr Polynomial kVariable = {0, 1, 0, 0};
/// Written numbers are rounded to fp32, or to ten digits.
constexpr double kRounding = 1e-6;
/// The longest way through a polynomial; exporters write up to 6 operators.
constexpr int kMostDeep = 8;

bool is_near(double value, double wanted) {
  return std::abs(value - wanted) <= kRounding * std::abs(wanted);
}

bool is_near(const Polynomial& p, const Polynomial& wanted) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (!is_near(p[i], wanted[i])) return false;
  }
  return true;
}

std::optional<Polynomial> product(const Polynomial& a, const Polynomial& b) {
  Polynomial result = {};
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b.size(); ++j) {
      if (a[i] == 0 || b[j] == 0) continue;
      if (i + j >= result.size()) return std::nullopt;
      result[i + j] += a[i] * b[j];
    }
  }
  return result;
}

std::optional<Polynomial> power(const Polynomial& base, double exponent) {
  if (exponent != 1 && exponent != 2 && exponent != 3) return std::nullopt;
  std::optional<Polynomial> result = base;
  for (int i = 1; result && i < static_cast<int>(exponent); ++i) result = product(*result, base);
  return result;
}

/// Reads tensors as polynomials in a tensor, and notes the operators.
class PolynomialReader {
 public:
  PolynomialReader(Trail& trail, TensorId variable) : trail_(trail), variable_(variable) {}

  std::optional<Polynomial> read(TensorId id, int deep = 0) {
    if (id == variable_) return kVariable;
    if (const std::optional<double> number = trail_.number(id)) return Polynomial{*number};
    if (deep == kMostDeep) return std::nullopt;
    for (const std::string_view type : {"Add", "Sub", "Mul", "Div", "Pow"}) {
      const Op* op = trail_.maker(id, type);
      if (op == nullptr) continue;
      trail_.take(id);
      const std::optional<Polynomial> a = read(op->inputs[0], deep + 1);
      if (!a) return std::nullopt;
      if (type == "Pow" || type == "Div")
        return with_number(*a, type, trail_.number(op->inputs[1]));
      const std::optional<Polynomial> b = read(op->inputs[1], deep + 1);
      if (!b) return std::nullopt;
      return type == "Mul" ? product(*a, *b) : sum(*a, *b, type == "Add" ? 1 : -1);
    }
    return std::nullopt;
  }

 private:
  static std::optional<Polynomial> with_number(const Polynomial& a, std::string_view type,
                                               std::optional<double> number) {
    if (!number) return std::nullopt;
    return type == "Pow" ? power(a, *number) : product(a, {1 / *number});
  }

  static Polynomial sum(const Polynomial& a, const Polynomial& b, double factor) {
    Polynomial result = {};
    for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] + factor * b[i];
    return result;
  }

  Trail& trail_;
  TensorId variable_;
};

/// A number times tensors.
struct Product {
  double number = 1;
  std::vector<TensorId> factors;
};

/// Takes apart the product that `id` is, through products that nothing else reads.
void multiply(Trail& trail, TensorId id, Product& product) {
  if (const std::optional<double> number = trail.number(id)) {
    product.number *= *number;
    return;
  }
  const Op* mul = trail.maker(id, "Mul");
  const Op* div = trail.maker(id, "Div");
  const std::optional<double> divisor =
      div == nullptr ? std::nullopt : trail.number(div->inputs[1]);
  const bool inside = id == trail.root() || trail.has_one_reader(id);
  if (!inside || (mul == nullptr && !divisor) || product.factors.size() > 2) {
    product.factors.push_back(id);
    return;
  }
  trail.take(id);
  if (divisor) product.number /= *divisor;
  multiply(trail, (mul != nullptr ? mul : div)->inputs[0], product);
  if (mul != nullptr) multiply(trail, mul->inputs[1], product);
}

/// Returns the product of two factors that the root is.
std::optional<Product> two_factors(Trail& trail) {
  Product found;
  multiply(trail, trail.root(), found);
  return found.factors.size() == 2 ? std::optional(found) : std::nullopt;
}

/// Tells whether the root is of the shape and type of `x`.
bool is_like(const Trail& trail, TensorId x) {
  const Tensor& tensor = trail.graph().tensor(x);
  return tensor.shape == trail.output().shape && tensor.type == trail.output().type;
}

/// Returns f where `id` is 1 + f and f is made by an operator of that type.
TensorId one_plus(Trail& trail, TensorId id, std::string_view type) {
  const Op* add = trail.maker(id, "Add");
  if (add == nullptr) return kNone;
  const auto terms = trail.with_number(*add);
  if (!terms || terms->second != 1 || trail.maker(terms->first, type) == nullptr) return kNone;
  trail.take(id);
  trail.take(terms->first);
  return terms->first;
}

std::optional<Polynomial> argument(Trail& trail, TensorId function, TensorId x) {
  return PolynomialReader(trail, x).read(
      trail.graph().op(trail.graph().tensor(function).producer).inputs[0]);
}

/// Finds 0.5 x (1 + f(p(x))) for the operator `type` as f and the polynomial p.
std::optional<Composite> find_gelu_by(Trail trail, std::string_view type, const Polynomial& wanted,
                                      const std::map<std::string, Attribute>& attributes) {
  const std::optional<Product> product = two_factors(trail);
  if (!product || product->number != 0.5) return std::nullopt;
  for (const std::size_t i : {0, 1}) {
    const TensorId x = product->factors[i];
    const std::size_t length = trail.length();
    const TensorId function = one_plus(trail, product->factors[1 - i], type);
    if (function != kNone && is_like(trail, x)) {
      const std::optional<Polynomial> p = argument(trail, function, x);
      if (p && is_near(*p, wanted)) return trail.found({x}, attributes);
    }
    trail.back_to(length);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Composite> find_gelu(Trail trail) {
  const double root = std::sqrt(2 * std::numbers::inv_pi);
  if (auto exact = find_gelu_by(trail, "Erf", {0, 1 / std::numbers::sqrt2, 0, 0}, {})) return exact;
  return find_gelu_by(trail, "Tanh", {0, root, 0, 0.044715 * root},
                      {{"approximate", std::string("tanh")}});
}

/// Finds x sigmoid(alpha x).
std::optional<Composite> find_swish(Trail trail) {
  const std::optional<Product> product = two_factors(trail);
  if (!product || product->number != 1) return std::nullopt;
  for (const std::size_t i : {0, 1}) {
    const TensorId x = product->factors[i], function = product->factors[1 - i];
    if (trail.maker(function, "Sigmoid") == nullptr || !is_like(trail, x)) continue;
    const std::size_t length = trail.length();
    trail.take(function);
    const std::optional<Polynomial> p = argument(trail, function, x);
    const double alpha = p ? (*p)[1] : 0;
    if (p && *p == Polynomial{0, alpha} && alpha != 0 && std::isfinite(alpha)) {
      std::map<std::string, Attribute> attributes;
      if (alpha != 1) attributes["alpha"] = alpha;
      return trail.found({x}, std::move(attributes));
    }
    trail.back_to(length);
  }
  return std::nullopt;
}

}  // namespace agpcs
