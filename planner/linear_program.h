// SPDX-License-Identifier: Apache-2.0
// The dynamic program behind seeder `linear`, over any costs and any way to hand out devices.
#pragma once

#include <functional>
#include <limits>
#include <vector>

namespace agpcs {

/// Devices that a stage may have: those between two states of what is handed out. A stage's
/// successors have devices from `to` on.
struct LinearGroup {
  int from = 0, to = 0;     ///< states, from < to
  int entry = 0, exit = 0;  ///< where tensors come in and leave, for `cut_seconds`
};

/// Pieces 0..pieces-1 in a row are to be cut into contiguous stages, each on a group; consecutive
/// stages have groups that meet in a state.
struct LinearProblem {
  int pieces = 0;
  int states = 0;
  std::vector<LinearGroup> groups;
  int most_stages = 1;
  /// Seconds of a stage of pieces [i, j) on a group, with `later` stages after it; infinite where
  /// it does not fit. Grows with the set of pieces.
  std::function<double(int i, int j, int group, int later)> stage_seconds;
  /// Seconds of what crosses the boundary between pieces i - 1 and i, from `exit` to `entry`.
  std::function<double(int i, int exit, int entry)> cut_seconds;

  /// A step takes (fill + stages) x the slowest stage or cut.
  double fill = 0;
  /// Plans whose step takes more than that many times the best one's may be missed.
  double within = std::numeric_limits<double>::infinity();
  /// Of a plan that is known; infinite: none is.
  double best_step = std::numeric_limits<double>::infinity();
  /// A lower bound on the slowest stage of pieces [0, i) before `state`, which grows with i; may be
  /// left out.
  std::function<double(int i, int state)> least_before;
};

struct LinearStage {
  int first_piece = 0, end_piece = 0;
  int group = 0;
};

struct LinearPlan {
  double seconds = 0;  ///< of the slowest stage or cut
  std::vector<LinearStage> stages;
};

/// For each number of stages up to most_stages for which there is a plan (`within` the best), the
/// one whose slowest stage or cut is fastest: exact. Any state may be first and last. Ties to the
/// lower state, then entry, then group, then to fewer pieces in the first stage.
///
/// Back to front, so that a stage knows how many follow it, and with 1F1B how many micro-batches it
/// holds: best[k][s, e][i] = the least possible slowest time of pieces [i, end) in k stages with
/// devices from state s on of which the first is entered at e. Cost: O(stages x pieces^2 x groups)
/// calls, O(stages x pieces x (states, entries)) memory; far fewer calls where `within` is small,
/// as only balanced plans are followed up. As PipeDream's partitioner (Narayanan et al., SOSP 2019)
/// and that of Metis (Um et al., ATC 2024) for device groups of several kinds.
std::vector<LinearPlan> solve_linear(const LinearProblem& problem);

}  // namespace agpcs
