// SPDX-License-Identifier: Apache-2.0
// agpcs-run --replan: makes its replanner, and writes files for review.
#pragma once

#include "tools/run/compiler_replanner.h"
#include "tools/run/options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/trainer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace agpcs {

/// Makes the replanner for `--replan CLUSTER.yaml`; returns null without that option. Reads the
/// cluster file, its profiles and the model. Warnings go to `console.err`.
Result<std::unique_ptr<CompilerReplanner>> replanner_for(const Plan& plan,
                                                         const RunOptions& options,
                                                         Console console);

/// Writes a proposed plan beside the old one: "net.replan-120.plan" beside "net.plan". The hardware
/// that it was made for goes to "net.replan-120.hardware.txt". A name that is taken gets "-2",
/// "-3", ...; nothing is overwritten. Returns the plan's path.
Result<std::string> write_proposal(const std::string& old_plan, std::int64_t step, const Plan& plan,
                                   const std::string& hardware);

/// Does the same under other names: "net.LABEL.plan" and "net.LABEL.hardware.txt".
Result<std::string> write_beside(const std::string& old_plan, const std::string& label,
                                 const Plan& plan, const std::string& hardware);

/// Returns what `write` returns for --plan's path. If that fails, calls it for a plan of the same
/// name in the folder of --save, because the plan's folder may be read-only.
Result<std::string> beside_plan_or_checkpoints(
    const RunOptions& options,
    const std::function<Result<std::string>(const std::string& old_plan)>& write);

/// Returns a file beside the old plan that holds the plan `text`: "net.LABEL.plan", or "-2", "-3",
/// ... if the name is taken. The first file that already has this text is used as it is; otherwise
/// the first free name is written. Serves ranks that may share their folder.
Result<std::string> keep_beside(const std::string& old_plan, const std::string& label,
                                const std::string& text, Console console);

}  // namespace agpcs
