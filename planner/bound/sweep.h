// SPDX-License-Identifier: Apache-2.0
// The least price of all samples at given prices of devices and of the networks of hosts, however
// operators are placed (docs/reference/agpcs_compile.md).
#pragma once

#include "planner/bound/places.h"
#include "planner/problem/problem.h"

#include <cstddef>
#include <vector>

namespace agpcs {

struct RowCost {
  double price = 0;
  /// By resource: the seconds that all of it takes for the placement with that price.
  std::vector<double> load;
};

/// A graph's operators, and the tensors between them, made ready for many prices. A sweep goes
/// through the operators in their order. For each combination of places of those operators whose
/// tensors are read later, it keeps the least price so far. If there are too many combinations, it
/// leaves out tensors, which only lowers the result.
class RowSweep {
 public:
  /// `crossing` is `can_cross` of the problem's graph; `most` is the most combinations that are
  /// kept. Refers to `places`.
  RowSweep(const Problem& problem, const BoundPlaces& places, const std::vector<bool>& crossing,
           double most);

  /// Returns the least price. `seconds[op x places + place]` is what all samples of an operator
  /// take on one device.
  double price(const BoundPrices& prices, const std::vector<double>& seconds) const;
  /// Returns it with its load.
  RowCost cost(const BoundPrices& prices, const std::vector<double>& seconds) const;

  /// Returns how many prices a sweep computes.
  double work() const { return work_; }

 private:
  class Maker;
  /// A tensor. Operators are digits of the table's index.
  struct Tensor {
    int producer = 0;
    std::vector<int> readers;
    bool crosses = false;              // otherwise all ends have one place
    double forward = 0, backward = 0;  // bytes of all samples
  };
  struct Step {
    std::vector<int> early;       // digits that leave the table before the operator enters it
    std::vector<Tensor> tensors;  // those whose last reader the operator is
    std::vector<int> late;        // digits that leave after it
  };
  struct Table;
  Table sweep(const BoundPrices& prices, const std::vector<double>& seconds, bool with_load) const;
  void enter(const BoundPrices& prices, const double* seconds, Table& table) const;
  void leave(int digit, Table& table) const;
  void add(const Tensor& tensor, const BoundPrices& prices, Table& table) const;
  void move(const Tensor& tensor, int from, int to, const BoundPrices& prices, std::size_t entry,
            Table& table) const;

  const BoundPlaces& places_;
  std::vector<Step> steps_;  // by operator
  double work_ = 0;
};

}  // namespace agpcs
