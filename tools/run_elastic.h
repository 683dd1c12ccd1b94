// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/common.h"
#include "tools/run_options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <atomic>
#include <string>
#include <vector>

namespace agpcs {

class CompilerReplanner;

/// The plan that a job goes on by, without the ranks that it has lost.
struct NextPlan {
  Plan plan;
  std::string path;   ///< of its file
  std::string label;  ///< "without-1": its file is "net.without-1.plan" beside "net.plan"
};

/// Plans for the devices of the ranks of `running` that are not `lost`, and writes that plan beside
/// --plan's, or in the folder of --save where it cannot. kCancelled once `cancel` is true.
Result<NextPlan> plan_without(const std::vector<int>& lost, const Plan& running,
                              CompilerReplanner& replanner, const RunOptions& options,
                              const std::atomic<bool>& cancel);

/// The seats of the ranks of `next`, by rank, where `seats` are those of the ranks of `running`:
/// who had a rank's device. Error (ours): nobody had it.
Result<std::vector<int>> seats_of(const Plan& next, const Plan& running,
                                  const std::vector<int>& seats);

/// What a job says that goes on after `status`, by `next`, without the `lost` ones of `names`.
std::string going_on(const Status& status, const std::vector<int>& lost,
                     const std::vector<std::string>& names, const NextPlan& next);
/// What it says when there is no plan: `why`.
Status no_going_on(const Status& status, const Status& why);

/// As `run_local`, but where ranks are lost (killed, or stopped), plans for the devices of the
/// others, writes that plan beside the old one, and starts these ranks again from the last
/// checkpoint: as often as it takes, while a rank is left. Ranks that fail by themselves would fail
/// again: they end the job. Needs --replan and --save.
Status run_elastic(const Plan& plan, const RunOptions& options,
                   const std::vector<std::string>& args, Console console);

/// What ranks that are started again resume from: the folder of --save once it has a later step
/// than what --resume gives, and that until then: what else is in the folder is another run's.
std::string next_resume(const RunOptions& options);

/// The command line of the ranks that go on by plan `next`: `args` with `next` in place of `plan`,
/// and resumed from `checkpoints`.
std::vector<std::string> resumed_args(const std::vector<std::string>& args, const std::string& plan,
                                      const std::string& next, const std::string& checkpoints);

/// The command line of the first ranks: without --elastic, which is their starter's business.
std::vector<std::string> ordinary_args(std::vector<std::string> args);

}  // namespace agpcs
