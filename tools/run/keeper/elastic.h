// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/common/common.h"
#include "tools/run/options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <atomic>
#include <string>
#include <vector>

namespace agpcs {

class CompilerReplanner;

/// The plan by which a job goes on without the ranks that it has lost.
struct NextPlan {
  Plan plan;
  std::string path;   ///< path of its file
  std::string label;  ///< "without-1": its file is "net.without-1.plan" beside "net.plan"
};

/// Plans for the devices of the ranks of `running` that are not `lost`. Writes the plan beside
/// --plan's file, or in the folder of --save if that fails. Returns kCancelled once `cancel` is
/// true.
Result<NextPlan> plan_without(const std::vector<int>& lost, const Plan& running,
                              CompilerReplanner& replanner, const RunOptions& options,
                              const std::atomic<bool>& cancel);

/// Returns the seats of the ranks of `next`, by rank. The seat of a rank is that of the rank of
/// `running` that had its device; `seats` are those of `running`. Error (ours): no rank had the
/// device.
Result<std::vector<int>> seats_of(const Plan& next, const Plan& running,
                                  const std::vector<int>& seats);

/// Says that a job goes on after `status` by plan `next`, without the ranks `lost` of `running`: a
/// warning, and with --json the event "lost".
void tell_going_on(const Status& status, const std::vector<int>& lost, const Plan& running,
                   const NextPlan& next, const RunOptions& options, Console console);
/// Returns the status of a job that cannot go on because planning failed with `why`.
Status no_going_on(const Status& status, const Status& why);

/// Does what `run_local` does, and goes on after the loss of ranks (killed or stopped): it plans
/// for the devices of the others, writes that plan beside the old one, and starts these ranks again
/// from the last checkpoint. It repeats this as often as necessary while a rank is left. Ranks that
/// fail by themselves would fail again, so they end the job. Needs --replan and --save.
Status run_elastic(const Plan& plan, const RunOptions& options, Console console);

/// Returns what restarted ranks resume from: the folder of --save once it has a later step than
/// --resume gives, and until then that of --resume, because older checkpoints in --save belong to
/// another run. Without --resume it is always the folder of --save.
std::string next_resume(const RunOptions& options);

/// Returns the options of the ranks that a job's starter starts: those of the job without --local
/// and --elastic, which only the starter handles.
GivenOptions options_of_ranks(const RunOptions& options);

/// Lets ranks of these options go on by the plan in file `plan`, from `checkpoints`.
void resume_by_plan(GivenOptions& options, const std::string& plan, const std::string& checkpoints);

}  // namespace agpcs
