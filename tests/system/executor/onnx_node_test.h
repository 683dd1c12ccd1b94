// SPDX-License-Identifier: Apache-2.0
// Runs ONNX's own node tests against the executor's kernels.
#pragma once

#include "runtime/torch/ops/ops.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace agpcs::testing {

/// What became of one node test.
struct NodeTestResult {
  enum Outcome { kPassed, kFailed, kSkipped } outcome = kSkipped;
  std::string why;                     ///< of a failure or a skip
  std::vector<std::string> operators;  ///< in the test's model, each once, sorted; "domain.Type"
};

/// Runs the test in `folder` (model.onnx, test_data_set_*/{input,output}_*.pb) by the kernels
/// alone, node by node. Outputs agree to a relative 1e-3 (as ONNX's own runner asks), types and
/// shapes exactly; half precision is computed in fp32, as the executor does, and compared to its
/// rounding.
NodeTestResult run_node_test(const std::string& folder);

/// What autograd says of one node test's model.
struct GradientCheck {
  bool done = false;  ///< false: several nodes, nothing to differentiate, or inputs outside AGPCS
  double error = 0;   ///< |autograd - central difference| along a random direction, relative
  std::string type;
  std::string exception;  ///< what the kernel or autograd threw
};

/// Differentiates a single-node test by autograd and by central differences, in fp64.
GradientCheck check_gradient(const std::string& folder);

/// A node test whose model is one node, with its first data set.
struct NodeCase {
  std::string test;                 ///< the folder's name
  Op op;                            ///< input i is tensor i
  Tensors in;                       ///< parallel to op.inputs
  Tensors expected;                 ///< parallel to op.outputs; absent outputs are undefined
  std::vector<int> expected_types;  ///< ONNX's numbers of types, parallel to `expected`
};
/// Reads the test in `folder`; nullopt if it has several nodes, or if `run_node_test` would not run
/// it.
std::optional<NodeCase> single_node_case(const std::string& folder);

/// Compares `got` with the expected output `i`, as `run_node_test` does.
std::optional<std::string> difference_from_expected(const NodeCase& one, std::size_t i,
                                                    const at::Tensor& got);

/// The folders of all node tests, sorted; empty where they are not installed.
std::vector<std::string> node_test_folders();

}  // namespace agpcs::testing
