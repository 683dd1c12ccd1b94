// SPDX-License-Identifier: Apache-2.0
// Runs a TeamBody as its members would, by the executor's kernels, and the whole graph beside it.
#pragma once

#include "ir/team/body.h"
#include "runtime/torch/ops/ops.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs::testing {

using TensorMap = std::map<TensorId, at::Tensor>;

/// Makes values, in fp64 where they are floating, for what operators `ops` read and do not make:
/// random ones, and constants as the graph has them.
TensorMap leaf_values(const Graph& graph, const std::vector<OpId>& ops, std::int64_t samples,
                      std::uint64_t seed);

/// What a pass over all micro-batches leaves.
struct TrainedStep {
  std::vector<TensorMap> values;     ///< by micro-batch: of all tensors, whole
  std::vector<TensorMap> gradients;  ///< by micro-batch: of other stages' tensors
  TensorMap parameter_gradients;     ///< the sums over the micro-batches
};

/// Runs operators forward and backward on one device, once for each of `leaves`. The loss has a
/// gradient of 1, other tensors that leave have random ones.
TrainedStep run_alone(const Graph& graph, const std::vector<OpId>& ops,
                      const std::vector<TensorMap>& leaves, std::int64_t samples);

/// Does the same as a team, step by step as the body says, and puts together what the members have.
/// Throws std::runtime_error if copies differ, or if a step needs what is not there.
TrainedStep run_team(const Graph& graph, const TeamBody& body, const std::vector<TensorMap>& leaves,
                     std::int64_t samples);

/// Returns where two differ by more than `relative` (of the greatest element of a tensor); "":
/// nowhere.
std::string difference(const Graph& graph, const TrainedStep& got, const TrainedStep& want,
                       double relative);

/// Returns where an operator draws from: its numbers are those of the whole tensor, whoever
/// computes.
RandomSource random_source(const Graph& graph, const Op& op, std::int64_t samples);
/// Returns the gradient that a tensor has where it leaves the operators.
at::Tensor seed_for(const Graph& graph, TensorId id, const at::Tensor& whole);
/// Adds `x` if it is defined; a sum may begin undefined.
void add_to(at::Tensor& sum, const at::Tensor& x);
/// Returns a copy that autograd knows as an input.
at::Tensor leaf_of(const at::Tensor& x, bool gradient);

}  // namespace agpcs::testing
