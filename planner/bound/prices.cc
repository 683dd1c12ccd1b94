// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/prices.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

/// Prices this near to the best end the search, as a fraction.
constexpr double kNear = 2e-5;
constexpr double kTiny = 1e-12;

double product(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// Maximizes the sum of w where sum over columns of w x load <= 1 for each resource. Its dual
/// prices are those of the resources: the least price of a column is 1.
class Simplex {
 public:
  explicit Simplex(std::size_t resources)
      : rows_(resources), value_(resources, 1), gains_(resources) {
    for (std::size_t i = 0; i < resources; ++i) {
      rows_[i].assign(resources, 0);
      rows_[i][i] = 1;
    }
  }

  std::vector<double> prices() const {
    std::vector<double> prices(rows_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      for (std::size_t j = 0; j < rows_.size(); ++j) prices[j] += gains_[i] * rows_[i][j];
    }
    return prices;
  }

  /// Brings a column into the basis; returns false if no column can leave it.
  bool enter(const std::vector<double>& column, double gain) {
    const std::size_t n = rows_.size();
    std::vector<double> direction;
    for (const std::vector<double>& row : rows_) direction.push_back(product(row, column));
    std::size_t leaves = n;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < n; ++i) {
      if (direction[i] <= kTiny || value_[i] / direction[i] >= least) continue;
      least = value_[i] / direction[i];
      leaves = i;
    }
    if (leaves == n) return false;
    for (double& entry : rows_[leaves]) entry /= direction[leaves];
    value_[leaves] = least;
    gains_[leaves] = gain;
    for (std::size_t i = 0; i < n; ++i) {
      if (i == leaves) continue;
      for (std::size_t j = 0; j < n; ++j) rows_[i][j] -= direction[i] * rows_[leaves][j];
      value_[i] = std::max(0.0, value_[i] - direction[i] * least);
    }
    return true;
  }

  /// Makes resources free that are not used up: no price is below 0 then. Returns false if rounding
  /// keeps it from that.
  bool free_unused() {
    for (std::size_t pivot = 0; pivot <= 4 * rows_.size(); ++pivot) {
      const std::vector<double> now = prices();
      const auto below = std::find_if(now.begin(), now.end(), [](double p) { return p < -kTiny; });
      if (below == now.end()) return true;
      std::vector<double> unit(now.size());
      unit[static_cast<std::size_t>(below - now.begin())] = 1;
      if (!enter(unit, 0)) return false;
    }
    return false;
  }

 private:
  std::vector<std::vector<double>> rows_;  // the inverse of the basis
  std::vector<double> value_, gains_;      // of the basis
};

}  // namespace

std::vector<double> best_money(
    std::vector<double> start, int calls,
    const std::function<std::vector<double>(const std::vector<double>& money)>& least) {
  Simplex simplex(start.size());
  std::vector<double> best = start, money = std::move(start);
  double most = 0;
  for (int call = 0; call < calls; ++call) {
    const std::vector<double> load = least(money);
    const double price = product(money, load);
    if (price > most) {
      most = price;
      best = money;
    }
    if (!simplex.enter(load, 1)) break;
    if (!simplex.free_unused()) break;
    money = simplex.prices();
    double sum = 0;
    for (double& p : money) sum += p = std::max(0.0, p);
    if (!(sum > 0) || most * sum >= 1 - kNear) break;
    for (double& p : money) p /= sum;
  }
  return best;
}

}  // namespace agpcs
