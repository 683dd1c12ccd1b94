// SPDX-License-Identifier: Apache-2.0
// RidgeFit: a linear model that is learned sample by sample.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace agpcs {

/// Ridge regression (Hoerl and Kennard, Technometrics 12, 1970): value = sum of weight x term,
/// where the weights minimize the squares of errors plus `ridge` x the squares of weights.
class RidgeFit {
 public:
  /// Needs: `ridge` > 0.
  RidgeFit(std::size_t terms, double ridge);
  /// Adds a sample. Needs: `terms` has the constructor's number of terms.
  void add(std::span<const double> terms, double value);
  /// Learns from the samples added. Cost: O(terms^3).
  void solve();
  /// Returns the value by the weights of the last `solve`; 0 before the first.
  double value(std::span<const double> terms) const;

 private:
  double ridge_;
  std::vector<double> squares_;   // sums of products of two terms, row by row
  std::vector<double> products_;  // sums of products of a term and the value
  std::vector<double> weights_;
};

}  // namespace agpcs
