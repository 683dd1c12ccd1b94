// SPDX-License-Identifier: Apache-2.0
// The dynamic program behind seeder `linear`, for any costs and any way to hand out devices.
#pragma once

#include <functional>
#include <limits>
#include <vector>

namespace agpcs {

/// Devices that a stage may have: those handed out between two states. The next stages have devices
/// from `to` on.
struct ChainGroup {
  int from = 0, to = 0;     ///< states, from < to
  int entry = 0, exit = 0;  ///< where tensors come in and leave, for `cut_seconds`
};

/// A row of pieces 0..pieces-1 to cut into contiguous stages, each on a group. The groups of
/// consecutive stages meet in a state.
struct ChainProblem {
  int pieces = 0;
  int states = 0;
  std::vector<ChainGroup> groups;
  int most_stages = 1;
  /// Returns the seconds of a stage of pieces [i, j) on a group, with `later` stages after it;
  /// infinite if it does not fit. It grows with the set of pieces. If that is more than `most`, it
  /// may return less that is more than `most`, too.
  std::function<double(int i, int j, int group, int later, double most)> stage_seconds;
  /// Returns the seconds of what crosses the boundary between pieces i - 1 and i, from `exit` to
  /// `entry`.
  std::function<double(int i, int exit, int entry)> cut_seconds;

  /// A step takes (fill + stages) x the slowest stage or cut.
  double fill = 0;
  /// The search may miss plans whose step takes more than this many times the best one's.
  double within = std::numeric_limits<double>::infinity();
  /// The step of a plan that is known; infinite if none is.
  double best_step = std::numeric_limits<double>::infinity();
  /// Returns a lower bound on the slowest stage of pieces [0, i) before `state`. It grows with i.
  /// Optional.
  std::function<double(int i, int state)> least_before;
};

struct ChainStage {
  int first_piece = 0, end_piece = 0;
  int group = 0;
};

struct ChainPlan {
  double seconds = 0;  ///< seconds of the slowest stage or cut
  std::vector<ChainStage> stages;
};

/// Returns, for each number of stages up to most_stages that has a plan (`within` the best), the
/// plan whose slowest stage or cut is fastest. This is exact. Any state may be first and last. Ties
/// go to the lower state, then entry, then group, then to fewer pieces in the first stage.
///
/// The program runs back to front, so that a stage knows how many follow it, and thus how many
/// micro-batches it holds with 1F1B. best[k][s, e][i] is the least possible slowest time of pieces
/// [i, end) in k stages with devices from state s on, the first of which is entered at e. Cost:
/// O(stages x pieces^2 x groups) calls, O(stages x pieces x (states, entries)) memory; far fewer
/// calls if `within` is small, as only balanced plans are followed up. It works like PipeDream's
/// partitioner (Narayanan et al., SOSP 2019) and that of Metis (Um et al., ATC 2024) for device
/// groups of several kinds.
std::vector<ChainPlan> partition_chain(const ChainProblem& problem);

}  // namespace agpcs
