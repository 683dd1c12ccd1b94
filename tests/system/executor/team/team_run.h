// SPDX-License-Identifier: Apache-2.0
// Runs a TeamBody as the executor does, a thread for each member, and the whole graph beside it.
#pragma once

#include "ir/team/body.h"
#include "runtime/torch/ops/ops.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs::testing {

using TensorMap = std::map<TensorId, at::Tensor>;

inline constexpr std::uint64_t kDropoutSeed = 5;

/// Makes values for what operators `ops` read and do not make: random ones, and constants as the
/// graph has them. Needs: floating tensors are fp64.
TensorMap leaf_values(const Graph& graph, const std::vector<OpId>& ops, std::int64_t samples,
                      std::uint64_t seed);

/// What a pass over all micro-batches leaves.
struct TrainedStep {
  std::vector<TensorMap> values;     ///< by micro-batch: whole tensors; of a team, what leaves
  std::vector<TensorMap> gradients;  ///< by micro-batch: of other stages' tensors
  TensorMap parameter_gradients;     ///< the sums over the micro-batches
};

/// Runs operators forward and backward on one device, once for each of `leaves`. The loss has a
/// gradient of 1, other tensors that leave have random ones.
TrainedStep run_alone(const Graph& graph, const std::vector<OpId>& ops,
                      const std::vector<TensorMap>& leaves, std::int64_t samples);

/// Does the same as a team, and puts together what the members have. Throws std::runtime_error if
/// copies differ, or what a member throws.
TrainedStep run_team(const Graph& graph, const TeamBody& body, const std::vector<TensorMap>& leaves,
                     std::int64_t samples);

/// Puts together what the members have of a tensor with `dims`. Throws std::runtime_error if copies
/// differ.
at::Tensor joined(const TeamBody& body, const TeamPlacement& placement, const Tensors& members,
                  const std::vector<std::int64_t>& dims);

/// Returns where the values and gradients that a team has differ by more than `relative` (of the
/// greatest element of a tensor); "": nowhere.
std::string difference(const Graph& graph, const TrainedStep& team, const TrainedStep& alone,
                       double relative);

/// Returns the gradient that a tensor has where it leaves the operators.
at::Tensor seed_for(const Graph& graph, TensorId id, const at::Tensor& whole);
/// Returns a copy that autograd knows as an input.
at::Tensor leaf_of(const at::Tensor& x, bool gradient);

}  // namespace agpcs::testing
