// SPDX-License-Identifier: Apache-2.0
// ProblemList: the problems that a benchmark of refiners runs on, and how closely its results may
// be looked at (docs/design/policy.md).
#pragma once

#include "planner/learn/problems/problem_generator.h"
#include "tests/bench/refiners/room_problems.h"
#include "tests/bench/refiners/sixty_problems.h"
#include "tests/bench/refiners/unseen_problems.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

namespace agpcs::bench {

struct ProblemList {
  std::string_view name;
  std::size_t size = 0;
  std::size_t usual = 0;         ///< how many of them, where nobody says
  bool aggregates_only = false;  ///< nobody looks at what is found on a single one of them
  bool best_is_known = false;    ///< by problem: the best known plan is kept (best_known.h)
  std::function<GeneratedProblem(std::size_t index)> make;
};

inline ProblemList room_list() {
  return {"room",
          std::size(kRoomProblems),
          std::size(kRoomProblems),
          true,
          true,
          [](std::size_t index) { return room_candidate(kRoomProblems[index]); }};
}

inline ProblemList sixty_list() {
  return {"sixty",
          std::size(kSixtyProblems),
          std::size(kSixtyProblems),
          false,
          false,
          [](std::size_t index) { return sixty_candidate(kSixtyProblems[index]); }};
}

inline ProblemList unseen_list() {
  return {"unseen",
          std::size(kUnseenProblems),
          std::size(kUnseenProblems),
          false,
          false,
          [](std::size_t index) {
            const ProblemSpec& spec = kUnseenProblems[index];
            GeneratedProblem problem = generate_problem(spec);
            problem.name = fmt::format("{}-{}-{}", spec.name, spec.family, spec.cluster);
            return problem;
          }};
}

/// To tune on: without an end.
inline ProblemList training_list(std::uint64_t seed) {
  return {"training",
          std::numeric_limits<int>::max(),
          40,
          false,
          false,
          [seed](std::size_t index) { return generate_problem(seed, static_cast<int>(index)); }};
}

/// To tune on, tight: without an end.
inline ProblemList tight_list(std::uint64_t seed) {
  return {"tight", std::numeric_limits<int>::max(), 40, false, false, [seed](std::size_t index) {
            return generate_tight_problem(seed, static_cast<int>(index));
          }};
}

inline ProblemList find_list(std::string_view name) {
  for (ProblemList list : {room_list(), sixty_list(), unseen_list()}) {
    if (list.name == name) return list;
  }
  end_with(fmt::format("refiner_bench: error: no list of problems '{}'; lists: room, sixty, unseen",
                       name));
}

}  // namespace agpcs::bench
