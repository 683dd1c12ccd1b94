// SPDX-License-Identifier: Apache-2.0
#include "cost_model/fit/robust_fit.h"

#include "ir/base/check.h"
#include "ir/base/significant_digits.h"

#include <Eigen/QR>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace agpcs {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr int kAbsoluteRounds = 30;
constexpr int kTukeyRounds = 50;
constexpr double kTukey = 4.685;
constexpr double kMedianOfNormal = 0.6745;  // median absolute deviation / standard deviation
/// Errors below half a percent count as this: no clock is more accurate.
constexpr double kLeastScale = 0.005;
constexpr double kRankTolerance = 1e-10;

/// Minimizes |a x - b| under x >= 0; of all minimal x, it returns (nearly) the shortest.
class NonNegative {
 public:
  NonNegative(const MatrixXd& a, const VectorXd& b)
      : a_(a), b_(b), x_(VectorXd::Zero(a.cols())), free_(static_cast<std::size_t>(a.cols()), 1) {}

  VectorXd solve() {
    x_ = least_squares();
    if (x_.minCoeff() >= 0) return x_;
    for (Index j = 0; j < x_.size(); ++j) {
      x_[j] = std::max(0.0, x_[j]);
      is_free(j) = x_[j] > 0;
    }
    // Every round lowers |a x - b|. The limit guards against rounding errors.
    for (Index round = 0; round < 10 + 3 * a_.cols(); ++round) {
      descend();
      if (!set_one_free()) break;
    }
    return x_;
  }

 private:
  char& is_free(Index j) { return free_[static_cast<std::size_t>(j)]; }

  /// Returns the shortest unconstrained solution over the free columns; the other columns are 0.
  VectorXd least_squares() {
    std::vector<Index> columns;
    for (Index j = 0; j < a_.cols(); ++j) {
      if (is_free(j)) columns.push_back(j);
    }
    VectorXd x = VectorXd::Zero(a_.cols());
    if (columns.empty()) return x;
    MatrixXd part(a_.rows(), static_cast<Index>(columns.size()));
    for (std::size_t k = 0; k < columns.size(); ++k) {
      part.col(static_cast<Index>(k)) = a_.col(columns[k]);
    }
    Eigen::CompleteOrthogonalDecomposition<MatrixXd> decomposition;
    decomposition.setThreshold(kRankTolerance);
    decomposition.compute(part);
    const VectorXd solution = decomposition.solve(b_);
    for (std::size_t k = 0; k < columns.size(); ++k) {
      x[columns[k]] = solution[static_cast<Index>(k)];
    }
    return x;
  }

  /// Moves to the least squares over the free columns, and fixes those that would become negative.
  void descend() {
    for (;;) {
      const VectorXd target = least_squares();
      double step = 1;
      for (Index j = 0; j < x_.size(); ++j) {
        if (is_free(j) && target[j] <= 0) step = std::min(step, x_[j] / (x_[j] - target[j]));
      }
      if (!(step < 1)) {
        x_ = target.cwiseMax(0.0);
        return;
      }
      x_ += step * (target - x_);
      bool fixed = false;
      for (Index j = 0; j < x_.size(); ++j) {
        if (!is_free(j) || target[j] > 0 || x_[j] > 1e-12 * std::abs(target[j])) continue;
        x_[j] = 0;
        is_free(j) = 0;
        fixed = true;
      }
      if (!fixed) return;
    }
  }

  /// Frees the column along which |a x - b| falls most; returns false when no column lowers it.
  bool set_one_free() {
    const VectorXd slope = a_.transpose() * (b_ - a_ * x_);
    Index best = -1;
    double most = kRankTolerance * b_.norm();
    for (Index j = 0; j < x_.size(); ++j) {
      if (is_free(j) || slope[j] <= most) continue;
      most = slope[j];
      best = j;
    }
    if (best >= 0) is_free(best) = 1;
    return best >= 0;
  }

  const MatrixXd& a_;
  const VectorXd& b_;
  VectorXd x_;
  std::vector<char> free_;  // by column; columns that are not free are 0
};

/// The observations as rows of errors relative to their values; every column is scaled to length
/// one.
struct System {
  MatrixXd a;
  VectorXd b;
  VectorXd column_length;
};

System system_of(const std::vector<Observation>& observations) {
  const auto rows = static_cast<Index>(observations.size());
  const auto columns = static_cast<Index>(observations.front().terms.size());
  System system{MatrixXd(rows, columns), VectorXd(rows), VectorXd(columns)};
  for (Index i = 0; i < rows; ++i) {
    const Observation& o = observations[static_cast<std::size_t>(i)];
    AGPCS_CHECK(o.value > 0 && static_cast<Index>(o.terms.size()) == columns,
                "observation of {} with {} terms", o.value, o.terms.size());
    const double scale = std::max(o.value, o.least);
    for (Index j = 0; j < columns; ++j) {
      system.a(i, j) = o.terms[static_cast<std::size_t>(j)] / scale;
    }
    system.b[i] = (o.value - o.offset) / scale;
  }
  for (Index j = 0; j < columns; ++j) {
    const double length = system.a.col(j).norm();
    system.column_length[j] = length > 0 ? length : 1;
    system.a.col(j) /= system.column_length[j];
  }
  return system;
}

VectorXd solve(const System& system, const VectorXd& weights) {
  const VectorXd root = weights.cwiseSqrt();
  const MatrixXd a = root.asDiagonal() * system.a;
  const VectorXd b = root.cwiseProduct(system.b);
  return NonNegative(a, b).solve();
}

/// Returns the scale of the errors: their median, after leaving out as many of the smallest as
/// coefficients can bring to 0.
double scale_of(const VectorXd& errors, const VectorXd& x) {
  std::vector<double> sorted(errors.data(), errors.data() + errors.size());
  for (double& error : sorted) error = std::abs(error);
  std::sort(sorted.begin(), sorted.end());
  const auto fitted = static_cast<std::size_t>((x.array() > 0).count());
  const std::size_t first = std::min(fitted, sorted.size() - 1);
  const std::size_t count = sorted.size() - first;
  const double median = (sorted[first + (count - 1) / 2] + sorted[first + count / 2]) / 2;
  return std::max(median / kMedianOfNormal, kLeastScale);
}

/// Rounds to nine significant digits; smaller differences come from the machine's arithmetic.
double rounded(double value) { return to_significant(value, 9); }

}  // namespace

RobustFit fit_robustly(const std::vector<Observation>& observations) {
  AGPCS_CHECK(!observations.empty(), "nothing to fit to");
  const System system = system_of(observations);
  VectorXd weights = VectorXd::Ones(system.b.size());
  VectorXd x = solve(system, weights);
  for (int round = 0; round < kAbsoluteRounds; ++round) {
    const VectorXd errors = system.a * x - system.b;
    weights = errors.cwiseAbs().cwiseMax(kLeastScale / 10).cwiseInverse();
    x = solve(system, weights);
  }
  for (int round = 0; round < kTukeyRounds; ++round) {
    const VectorXd errors = system.a * x - system.b;
    const double reach = kTukey * scale_of(errors, x);
    weights = (1 - (errors / reach).array().square()).cwiseMax(0.0).square().matrix();
    const VectorXd next = solve(system, weights);
    const double change = (next - x).norm();
    x = next;
    if (change <= 1e-10 * x.norm()) break;
  }
  RobustFit fit;
  fit.outliers = static_cast<std::size_t>((weights.array() == 0).count());
  for (Index j = 0; j < x.size(); ++j) {
    fit.coefficients.push_back(rounded(x[j] / system.column_length[j]));
  }
  return fit;
}

void weigh_by_time(std::vector<Observation>& observations) {
  std::vector<double> values;
  values.reserve(observations.size());
  for (const Observation& o : observations) values.push_back(o.value);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  for (Observation& o : observations) o.least = *middle;
}

double fitted_value(const Observation& observation, const std::vector<double>& coefficients) {
  double value = observation.offset;
  for (std::size_t j = 0; j < coefficients.size(); ++j) {
    value += coefficients[j] * observation.terms[j];
  }
  return value;
}

double relative_error(const Observation& observation, const std::vector<double>& coefficients) {
  return std::abs(fitted_value(observation, coefficients) - observation.value) / observation.value;
}

}  // namespace agpcs
