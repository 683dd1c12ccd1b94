// SPDX-License-Identifier: Apache-2.0
// The dynamic program behind seeder `linear`, over any costs.
#pragma once

#include <functional>
#include <vector>

namespace agpcs {

/// Pieces 0..pieces-1 in a row are to be cut into contiguous stages, which run on contiguous runs
/// of units 0..units-1.
struct LinearProblem {
  int pieces = 0;
  int units = 0;
  int most_stages = 1;
  /// Seconds of a stage of pieces [i, j) on units [a, b).
  std::function<double(int i, int j, int a, int b)> stage_seconds;
  /// Seconds of what crosses a boundary between pieces i - 1 and i and units a - 1 and a.
  std::function<double(int i, int a)> cut_seconds;
};

struct LinearStage {
  int first_piece = 0, end_piece = 0;
  int first_unit = 0, end_unit = 0;
};

struct LinearPlan {
  double seconds = 0;  ///< of the slowest stage or cut
  std::vector<LinearStage> stages;
};

/// For each number of stages 1, 2, ... most_stages (fewer where pieces or units run out) the plan
/// whose slowest stage or cut is fastest: exact. Units before the first and after the last stage
/// may idle, none in between. Among equals the plan that ends at an earlier unit, whose last stage
/// has fewer units, then more pieces.
///
/// State: best[k][b][j] = the least possible slowest time of pieces [0, j) in k stages of which the
/// last ends at unit b; it extends every best[k - 1][a][i] with i < j, a < b by one stage.
/// Cost: O(stages x pieces^2 x units^2) calls, O(stages x pieces x units) memory. As PipeDream's
/// partitioner (Narayanan et al., SOSP 2019), but with unequal units.
std::vector<LinearPlan> solve_linear(const LinearProblem& problem);

}  // namespace agpcs
