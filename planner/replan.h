// SPDX-License-Identifier: Apache-2.0
// replan: finds a better plan for hardware that changed, starting from the plan that runs.
#pragma once

#include "planner/choose_flows.h"
#include "planner/problem/problem.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace agpcs {

struct ReplanOptions {
  std::uint64_t seed = 0;
  double least_gain = 0.03;  ///< part of the running plan's step that a better one must save
  std::int64_t budget = 0;   ///< evaluations of the search; 0: a quarter of `default_budget`
  AllReduceChoice all_reduce = AllReduceChoice::kAuto;
  const std::atomic<bool>* interrupted = nullptr;  ///< true: it ends soon, with no plan
};

struct Replanned {
  Evaluated best;
  /// The step of the running plan on the problem's hardware; infinite if it cannot run there,
  /// because devices are gone or memory does not suffice.
  double running_step_seconds = 0;
};

/// Returns strategies near the running plan for the problem's hardware: the plan as it is; with
/// shares by the devices' speed now; with its stages cut anew, where they are, rotated and
/// reversed. Devices that the cluster no longer has are left out. Where the plan has teams, and the
/// problem may choose teams: the plan as it is; with the teams of each stage formed anew of the
/// devices that it has now, by their speeds; and, as all others, without teams. Returns none if a
/// stage has no device left. Cost: a few moves (planner/refine/moves/moves.h), and two bodies a
/// stage.
std::vector<Strategy> warm_starts(const Problem& problem, const Plan& running);

/// Returns the best plan found on the problem's hardware. The search begins from `warm_starts` and
/// from the best seeds, as that of `plan_problem` does. Returns nothing if the plan saves less than
/// `least_gain`. Same problem, plan and seed: same plan. Needs: `running` is for the problem's
/// graph and training. To plan for exactly the devices of the cluster, perhaps with some of them
/// idle, set ProblemOptions::ranks.
Result<std::optional<Replanned>> replan(const Problem& problem, const Plan& running,
                                        const ReplanOptions& options);

}  // namespace agpcs
