// SPDX-License-Identifier: Apache-2.0
// Problems on which to train the policy and to measure refiners (docs/design/policy.md).
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace agpcs {

struct GeneratedProblem {
  std::string name;  ///< "training-7-12-encoder-mixed": seed, index, model family, cluster shape
  Graph graph;       ///< a training graph
  Cluster cluster;
  Training training;
};

/// Returns a random training problem: the model families take turns, the cluster is random. It
/// never has a family, a cluster shape or a device kind that is held out. Same arguments, same
/// problem.
GeneratedProblem generate_problem(std::uint64_t seed, int index);
/// Returns a random tight training problem: unequal layers on slow and unequal links, with little
/// more memory than a pipeline over all devices needs. Families and shapes take turns; they are
/// for tight training alone, and the devices are those of other training problems. Same arguments,
/// same problem.
GeneratedProblem generate_tight_problem(std::uint64_t seed, int index);
/// Returns a problem for a given training graph and its loss: a random cluster and training.
GeneratedProblem generate_problem(const Graph& graph, const Loss& loss, std::uint64_t seed,
                                  int index);

/// Names a problem by family and shape, held out or not. Needs: both exist. A shape of tight
/// problems makes a tight one.
struct ProblemSpec {
  std::string_view name;
  std::string_view family;
  std::string_view cluster;
  std::uint64_t seed = 0;
};
GeneratedProblem generate_problem(const ProblemSpec& spec);

}  // namespace agpcs
