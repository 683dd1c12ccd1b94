// SPDX-License-Identifier: Apache-2.0
// Robust fit: finds coefficients that explain measurements. No coefficient is negative, and a few
// wrong measurements do not change the result.
#pragma once

#include <cstddef>
#include <vector>

namespace agpcs {

/// A measurement and the terms that explain it: value = offset + sum of coefficient x term.
struct Observation {
  std::vector<double> terms;  ///< one for each coefficient
  double value = 0;           ///< > 0
  double offset = 0;          ///< known beforehand
  double least = 0;           ///< errors are relative to the value, or to `least` if it is larger
};

struct RobustFit {
  std::vector<double> coefficients;
  std::size_t outliers = 0;  ///< observations that were set aside
};

/// Minimizes relative errors under coefficients >= 0 (Lawson and Hanson, Solving Least Squares
/// Problems, 1974, chapter 23), by iteratively reweighted least squares: it starts from the least
/// absolute errors and goes to Tukey's biweight with its usual constant 4.685, whose scale is the
/// median absolute error without the errors that the coefficients can bring to 0 (Holland and
/// Welsch, Commun. Stat. A6(9), 1977). Coefficients that the observations do not tell apart share
/// evenly what they explain. All are rounded to nine digits, so that they are the same on every
/// machine. Needs: at least one observation; all have the same number of terms. Cost:
/// O(observations x coefficients^3).
RobustFit fit_robustly(const std::vector<Observation>& observations);

/// Sets `least` of every observation to the median value, so that values below it count as if they
/// were it. Where times of all sizes add up, accuracy for short times is not worth an error in long
/// ones.
void weigh_by_time(std::vector<Observation>& observations);

/// Returns the value of an observation according to `coefficients`.
double fitted_value(const Observation& observation, const std::vector<double>& coefficients);

/// Returns the distance of that value from the measured one, relative to the measured one.
double relative_error(const Observation& observation, const std::vector<double>& coefficients);

}  // namespace agpcs
