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

  std::vector<LinearPlan> run() {
    const int most = std::min({problem_.most_stages, problem_.pieces, problem_.units});
    layers_.assign(static_cast<std::size_t>(most) + 1, empty_layer());
    for (int unit = 0; unit <= problem_.units; ++unit) state(0, unit, 0).seconds = 0;
    std::vector<LinearPlan> plans;
    for (int stages = 1; stages <= most; ++stages) {
      for (int unit = stages; unit <= problem_.units; ++unit) {
        for (int piece = stages; piece <= problem_.pieces; ++piece) extend_to(stages, unit, piece);
      }
      plans.push_back(best_plan(stages));
    }
    return plans;
  }

 private:
  std::vector<State> empty_layer() const {
    return std::vector<State>(width_ * (static_cast<std::size_t>(problem_.units) + 1));
  }
  State& state(int stages, int unit, int piece) {
    return layers_[static_cast<std::size_t>(stages)]
                  [static_cast<std::size_t>(unit) * width_ + static_cast<std::size_t>(piece)];
  }

  void extend_to(int stages, int unit, int piece) {
    State& best = state(stages, unit, piece);
    for (int a = unit - 1; a >= stages - 1; --a) {
      for (int i = stages - 1; i < piece && (stages > 1 || i == 0); ++i) {
        const double before = state(stages - 1, a, i).seconds;
        if (before >= best.seconds) continue;
        const double cut = i > 0 ? problem_.cut_seconds(i, a) : 0;
        if (cut >= best.seconds) continue;
        const double seconds = std::max({before, cut, problem_.stage_seconds(i, piece, a, unit)});
        if (seconds < best.seconds) best = {seconds, i, a};
      }
    }
  }

  LinearPlan best_plan(int stages) {
    int unit = stages;
    for (int u = stages + 1; u <= problem_.units; ++u) {
      const double seconds = state(stages, u, problem_.pieces).seconds;
      if (seconds < state(stages, unit, problem_.pieces).seconds) unit = u;
    }
    LinearPlan plan;
    int piece = problem_.pieces;
    plan.seconds = state(stages, unit, piece).seconds;
    for (int k = stages; k > 0; --k) {
      const State& end = state(k, unit, piece);
      plan.stages.push_back({end.from_piece, piece, end.from_unit, unit});
      piece = end.from_piece;
      unit = end.from_unit;
    }
    std::reverse(plan.stages.begin(), plan.stages.end());
    return plan;
  }

  const LinearProblem& problem_;
  std::size_t width_;
  std::vector<std::vector<State>> layers_;  // by number of stages
};

}  // namespace

std::vector<LinearPlan> solve_linear(const LinearProblem& problem) {
  return LinearSolver(problem).run();
}

}  // namespace agpcs
