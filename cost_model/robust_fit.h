// SPDX-License-Identifier: Apache-2.0
// Robust fit: coefficients that explain measurements, none of them negative, whatever a few
// measurements say.
#pragma once

#include <cstddef>
#include <vector>

namespace agpcs {

/// A measurement and what explains it: value = offset + sum of coefficient x term.
struct Observation {
  std::vector<double> terms;  ///< one a coefficient
  double value = 0;           ///< > 0
  double offset = 0;          ///< known beforehand
  double least = 0;           ///< errors are relative to the value, or to this where it is larger
};

struct RobustFit {
  std::vector<double> coefficients;
  std::size_t outliers = 0;  ///< observations that were set aside
};

/// Minimizes relative errors under coefficients >= 0 (Lawson and Hanson, Solving Least Squares
/// Problems, 1974, chapter 23), by iteratively reweighted least squares: from the least absolute
/// errors to Tukey's biweight with its usual constant 4.685, whose scale is the median absolute
/// error of what the coefficients do not fit anyway (Holland and Welsch, Commun. Stat. A6(9),
/// 1977). Coefficients that the observations do not tell apart share what they explain evenly; all
/// are rounded to nine digits, so that they are the same on every machine.
/// Needs: observations, all of equally many terms. Cost: O(observations x coefficients^3).
RobustFit fit_robustly(const std::vector<Observation>& observations);

/// Lets values below the median count as if they were it: where times of all sizes add up, being
/// right about the short ones is worth no error in the long ones.
void weigh_by_time(std::vector<Observation>& observations);

/// What `coefficients` say of an observation.
double fitted_value(const Observation& observation, const std::vector<double>& coefficients);

/// How far that is from its value, relative to it.
double relative_error(const Observation& observation, const std::vector<double>& coefficients);

}  // namespace agpcs
