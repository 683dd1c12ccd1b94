// SPDX-License-Identifier: Apache-2.0
// Models that teams compute, and bodies for them.
#pragma once

#include "ir/base/rng.h"
#include "ir/graph/graph.h"
#include "planner/team/choose.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs::testing {

/// A model, all of it or some of its operators.
struct TeamCase {
  std::string name;
  Graph graph;
  std::vector<OpId> ops;
};

/// Returns models of GPT-2's and Llama's form, a convolutional one, and BERT with dropout.
std::vector<TeamCase> whole_models();
/// Returns a stage in the middle of a model.
TeamCase middle_stage();
/// Returns the same with floating tensors in fp64.
TeamCase in_fp64(TeamCase one);

/// Asks for a team in which member i is parts[i] times as fast as one that is 1.
TeamProblem problem_of(const TeamCase& one, const std::vector<std::int64_t>& parts,
                       std::int64_t samples, double link = 1e9, double latency = 0);

/// Returns a body in which each operator has any of its options; nullopt: these do not fit
/// together.
std::optional<TeamBody> random_body(const TeamProblem& problem, Rng& rng);

}  // namespace agpcs::testing
