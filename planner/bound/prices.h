// SPDX-License-Identifier: Apache-2.0
// Prices of resources for which the least price of a sample is as high as it can be.
#pragma once

#include <functional>
#include <vector>

namespace agpcs {

/// Maximizes the least of sum money[i] x load[i] over some set of loads, for money that is not
/// negative and sums to 1. `least(money)` returns the load of the set for which the sum is least.
/// Every money gives a bound; this one is nearly the best, after at most `calls` calls that begin
/// with `start`. The method is the simplex method with columns as they are needed (Dantzig and
/// Wolfe, Operations Research 8(1), 1960). Deterministic.
std::vector<double> best_money(
    std::vector<double> start, int calls,
    const std::function<std::vector<double>(const std::vector<double>& money)>& least);

}  // namespace agpcs
