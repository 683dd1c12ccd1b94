// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/torch_products.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace agpcs {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The numbers of a contiguous fp32 matrix, by row.
template <typename Number>
class Rows {
 public:
  Rows(const Tensor& tensor, std::int64_t columns)
      : numbers_(tensor.data_ptr<float>()), columns_(static_cast<std::size_t>(columns)) {}
  std::span<Number> operator[](std::int64_t row) const {
    return {numbers_ + static_cast<std::size_t>(row) * columns_, columns_};
  }

 private:
  Number* numbers_;
  std::size_t columns_;
};
using InRows = Rows<const float>;
using OutRows = Rows<float>;

/// Adds sums += factor x row. The sums do not wait for each other.
void add_scaled(float factor, std::span<const float> row, std::span<float> sums) {
  for (std::size_t i = 0; i < row.size(); ++i) sums[i] += factor * row[i];
}

/// Computes [rows x n], [rows x m] -> [n x m]: a' b.
Tensor transposed_product(const Tensor& a, const Tensor& b) {
  const std::int64_t rows = a.size(0), n = a.size(1), m = b.size(1);
  const Tensor result = torch::zeros({n, m});
  const InRows of_a(a, n), of_b(b, m);
  const OutRows sums(result, m);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < n; ++i) {
      const float factor = of_a[row][static_cast<std::size_t>(i)];
      if (factor != 0) add_scaled(factor, of_b[row], sums[i]);
    }
  }
  return result;
}

struct LinearRows : torch::autograd::Function<LinearRows> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weights,
                        const Tensor& bias) {
    const Tensor inputs = x.contiguous();
    context->save_for_backward({inputs});
    const std::int64_t rows = inputs.size(0), features = inputs.size(1), units = weights.size(0);
    const Tensor by_feature = weights.t().contiguous();
    const Tensor result = torch::zeros({rows, units});
    const InRows in(inputs, features), of_weights(by_feature, units);
    const OutRows out(result, units);
    const std::span<const float> biases = InRows(bias, units)[0];
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t f = 0; f < features; ++f) {
        const float factor = in[row][static_cast<std::size_t>(f)];
        if (factor != 0) add_scaled(factor, of_weights[f], out[row]);  // most features are 0
      }
      add_scaled(1, biases, out[row]);
    }
    return result;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor gradient = gradients[0].contiguous();
    const Tensor inputs = context->get_saved_variables()[0];
    return {Tensor(), transposed_product(gradient, inputs), gradient.sum(0)};
  }
};

struct WeightedRows : torch::autograd::Function<WeightedRows> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weights) {
    const Tensor inputs = x.contiguous();
    context->save_for_backward({inputs, weights});
    const std::int64_t rows = inputs.size(0), units = weights.size(0);
    const Tensor result = torch::empty({rows});
    const InRows in(inputs, units);
    const std::span<const float> factors = InRows(weights, units)[0];
    const std::span<float> out = OutRows(result, rows)[0];
    for (std::int64_t row = 0; row < rows; ++row) {
      float sum = 0;
      for (std::size_t u = 0; u < factors.size(); ++u) sum += in[row][u] * factors[u];
      out[static_cast<std::size_t>(row)] = sum;
    }
    return result;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor gradient = gradients[0].contiguous().unsqueeze(1);
    const variable_list saved = context->get_saved_variables();
    return {gradient * saved[1], transposed_product(gradient, saved[0]).view({-1})};
  }
};

}  // namespace

Tensor linear_rows(const Tensor& x, const Tensor& weights, const Tensor& bias) {
  return LinearRows::apply(x, weights, bias);
}

Tensor weighted_rows(const Tensor& x, const Tensor& weights) {
  return WeightedRows::apply(x, weights);
}

}  // namespace agpcs
