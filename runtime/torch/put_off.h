// SPDX-License-Identifier: Apache-2.0
// PutOffProducts: the products of one micro-batch whose weights get their gradients in a weight
// pass. The input pass goes back through them as through any operator, but for the weights.
#pragma once

#include "runtime/torch/ops/ops.h"

#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace agpcs {

class PutOffProducts {
 public:
  /// A product of a factor and a weight, and its two gradients.
  struct Product {
    std::function<at::Tensor(const at::Tensor& factor, const at::Tensor& weight)> make;
    std::function<at::Tensor(const at::Tensor&gradient, const at::Tensor&factor,
                             const at::Tensor&weight)>
        of_factor, of_weight;
  };
  PutOffProducts();
  ~PutOffProducts();
  PutOffProducts(PutOffProducts&&) noexcept;
  PutOffProducts& operator=(PutOffProducts&&) noexcept;

  /// Returns the product. Autograd gives the factor its gradient, and nothing to `weight`, which is
  /// `parameter`, or is made of it alone.
  at::Tensor make(Product product, const at::Tensor& factor, const at::Tensor& weight,
                  TensorId parameter);
  /// Returns the parameters that `finish` gives gradients.
  std::set<TensorId> parameters() const;
  /// Gives the parameters their gradients, in the order in which the input pass went back, and
  /// forgets the products. A parameter of several products gets one gradient.
  void finish();

 private:
  struct Made;
  std::vector<std::unique_ptr<Made>> made_;  // in the order of the forward pass
};

/// Returns the product of matrices `factor` and `weight`, which has two axes, for `call`.
at::Tensor put_off_product(const OpCall& call, const at::Tensor& factor, const at::Tensor& weight,
                           double alpha);

}  // namespace agpcs
