// SPDX-License-Identifier: Apache-2.0
// agpcs-run --replan: its replanner, and the files that it leaves for review.
#pragma once

#include "tools/replan.h"
#include "tools/run_options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/trainer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace agpcs {

/// The replanner for `--replan CLUSTER.yaml`; null without. Reads the cluster file, its profiles
/// and the model. Warnings go to `console.err`.
Result<std::unique_ptr<CompilerReplanner>> replanner_for(const Plan& plan,
                                                         const RunOptions& options,
                                                         Console console);

/// Writes a proposed plan beside the old one: "net.replan-120.plan" beside "net.plan", and what it
/// was made for as "net.replan-120.hardware.txt". A name that is taken gets "-2", "-3", ...:
/// nothing is overwritten. The plan's path.
Result<std::string> write_proposal(const std::string& old_plan, std::int64_t step, const Plan& plan,
                                   const std::string& hardware);

/// The same under another name: "net.LABEL.plan" and "net.LABEL.hardware.txt".
Result<std::string> write_beside(const std::string& old_plan, const std::string& label,
                                 const Plan& plan, const std::string& hardware);

/// What `write` gives for --plan, or where that fails for a plan of the same name in the folder of
/// --save: the plan's folder may be one to read only.
Result<std::string> beside_plan_or_checkpoints(
    const RunOptions& options,
    const std::function<Result<std::string>(const std::string& old_plan)>& write);

/// The file of the plan `text` beside the old one: "net.LABEL.plan", or the first of "-2", "-3",
/// ... that is free, unless one before has this text. For ranks that may share their folder.
Result<std::string> keep_beside(const std::string& old_plan, const std::string& label,
                                const std::string& text, Console console);

}  // namespace agpcs
