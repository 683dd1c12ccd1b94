// SPDX-License-Identifier: Apache-2.0
// Minimizes a function of a few numbers without its gradient.
#pragma once

#include <functional>
#include <vector>

namespace agpcs::bench {

/// Returns a point near `start` where `f` is least, by the method of Nelder and Mead (1965),
/// started again several times from the best point. Deterministic.
std::vector<double> minimized(std::vector<double> start,
                              const std::function<double(const std::vector<double>&)>& f);

}  // namespace agpcs::bench
