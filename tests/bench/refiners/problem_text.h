// SPDX-License-Identifier: Apache-2.0
// What a generated problem says, as text: lists of problems are known by its digest.
#pragma once

#include "ir/plan/choices.h"
#include "planner/learn/problems/problem_generator.h"

#include <fmt/format.h>

#include <string>

namespace agpcs::bench {

inline std::string text_of(const GeneratedProblem& problem) {
  const Training& training = problem.training;
  return problem.name + "\n" + print_graph(problem.graph) + print_cluster(problem.cluster) +
         fmt::format("batch {} precision {} optimizer {} loss {}\n", training.batch,
                     name_of(training.precision), name_of(training.optimizer.kind),
                     name_of(training.loss.kind));
}

}  // namespace agpcs::bench
