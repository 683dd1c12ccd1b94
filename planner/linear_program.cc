// SPDX-License-Identifier: Apache-2.0
#include "planner/linear_program.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace agpcs {
namespace {

struct State {
  double seconds = std::numeric_limits<double>::infinity();
  int from_piece = 0, from_unit = 0;
};

class LinearSolver {
 public:
  explicit LinearSolver(const LinearProblem& problem)
      : problem_(problem), width_(static_cast<std::size_t>(problem.pieces) + 1) {}

  LinearPlan run() {
    states_.assign(width_ * (static_cast<std::size_t>(problem_.units) + 1), {});
    for (int unit = 0; unit <= problem_.units; ++unit) state(unit, 0).seconds = 0;
    for (int unit = 1; unit <= problem_.units; ++unit) {
      for (int piece = 1; piece <= problem_.pieces; ++piece) extend_to(unit, piece);
    }
    int last = 1;
    for (int unit = 2; unit <= problem_.units; ++unit) {
      if (state(unit, problem_.pieces).seconds < state(last, problem_.pieces).seconds) last = unit;
    }
    return trace_back(last);
  }

 private:
  State& state(int unit, int piece) {
    return states_[static_cast<std::size_t>(unit) * width_ + static_cast<std::size_t>(piece)];
  }

  void extend_to(int unit, int piece) {
    State& best = state(unit, piece);
    for (int a = unit - 1; a >= 0; --a) {
      for (int i = 0; i < piece; ++i) {
        const double before = state(a, i).seconds;
        if (before >= best.seconds) continue;
        const double cut = i > 0 ? problem_.cut_seconds(i, a) : 0;
        const double seconds = std::max({before, cut, problem_.stage_seconds(i, piece, a, unit)});
        if (seconds < best.seconds) best = {seconds, i, a};
      }
    }
  }

  LinearPlan trace_back(int unit) {
    LinearPlan plan;
    int piece = problem_.pieces;
    plan.seconds = state(unit, piece).seconds;
    while (piece > 0) {
      const State& end = state(unit, piece);
      plan.stages.push_back({end.from_piece, piece, end.from_unit, unit});
      piece = end.from_piece;
      unit = end.from_unit;
    }
    std::reverse(plan.stages.begin(), plan.stages.end());
    return plan;
  }

  const LinearProblem& problem_;
  std::size_t width_;
  std::vector<State> states_;
};

}  // namespace

LinearPlan solve_linear(const LinearProblem& problem) { return LinearSolver(problem).run(); }

}  // namespace agpcs
