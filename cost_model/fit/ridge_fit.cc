// SPDX-License-Identifier: Apache-2.0
#include "cost_model/fit/ridge_fit.h"

#include <Eigen/Cholesky>

#include <numeric>

namespace agpcs {

RidgeFit::RidgeFit(std::size_t terms, double ridge)
    : ridge_(ridge), squares_(terms * terms), products_(terms), weights_(terms) {}

void RidgeFit::add(std::span<const double> terms, double value) {
  for (std::size_t i = 0; i < terms.size(); ++i) {
    for (std::size_t j = 0; j < terms.size(); ++j) {
      squares_[i * terms.size() + j] += terms[i] * terms[j];
    }
    products_[i] += terms[i] * value;
  }
}

void RidgeFit::solve() {
  const auto terms = static_cast<Eigen::Index>(products_.size());
  Eigen::MatrixXd squares = Eigen::Map<const Eigen::MatrixXd>(squares_.data(), terms, terms);
  squares.diagonal().array() += ridge_;
  Eigen::Map<Eigen::VectorXd>(weights_.data(), terms) =
      squares.llt().solve(Eigen::Map<const Eigen::VectorXd>(products_.data(), terms));
}

double RidgeFit::value(std::span<const double> terms) const {
  return std::inner_product(terms.begin(), terms.end(), weights_.begin(), 0.0);
}

}  // namespace agpcs
