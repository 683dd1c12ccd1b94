// SPDX-License-Identifier: Apache-2.0
// Problems that tests of the search share: chains and branches, even and mixed clusters, memory
// that is ample or short.
#pragma once

#include "tests/bench/planning/small_cases.h"
#include "tests/planner/problem/problems.h"

#include <memory>
#include <string>

namespace agpcs::testing {

/// Paths that skip stages, a tensor without samples that crosses, a parameter used twice.
inline Graph branching() {
  std::string text =
      "input x [n,64]\ninput labels int64[n]\nparameter bias [64]\nparameter shared [64,64]\n"
      "s = Sigmoid(bias) [64]\nh0 = MatMul(x, shared) [n,64]\ng0 = MatMul(h0, shared) [n,64]\n";
  std::string last = "g0";
  for (int i = 1; i <= 7; ++i) {
    const std::string n = std::to_string(i);
    text += "parameter w" + n + " [64,64]\nh" + n + " = MatMul(" + last + ", w" + n + ") [n,64]\n";
    text += "g" + n + " = Add(h" + n + ", " + (i % 3 == 0 ? "g0" : "s") + ") [n,64]\n";
    last = "g" + n;
  }
  return graph_of(text + "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last +
                  "\nloss l\n");
}

/// Six devices; those of host a hold 16 GB, the others 200 kB.
inline Cluster three_mixed_hosts() {
  return cluster_of(
      "kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "kind slow memory=2e5 bandwidth=300e9 fp32=5e12\n"
      "host a fast 3 nic=1e9\nhost b slow 2 nic=2e9 bandwidth=10e9\nhost c slow 1 nic=3e9\n");
}

/// A problem by number: every fourth a chain on fast and slow devices, branches on mixed hosts, a
/// chain that no device holds alone, and one of the generated small cases.
inline std::unique_ptr<const Problem> search_problem(std::uint64_t number) {
  switch (number % 4) {
    case 0:
      return problem_of(chain(10), fast_and_slow(), 24);
    case 1:
      return problem_of(branching(), three_mixed_hosts(), 20);
    case 2:  // 8 layers of 4 MB with their gradients, on devices of 50 MB
      return problem_of(chain(8, 1024), fast_and_slow("50e6"), 16);
    default:
      return bench::small_problem(number);
  }
}

}  // namespace agpcs::testing
