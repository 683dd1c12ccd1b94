// SPDX-License-Identifier: Apache-2.0
// A pipeline's stages as torchtitan's configuration has them.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Prints the settings by which torchtitan runs the plan's pipeline, as TOML: the modules of each
/// stage (`module_fqns_per_model_part`), the size of a micro-batch, and `schedule`, the path of the
/// file that has `schedule_lines`. torchtitan parts the modules that the model itself calls, and
/// runs the model's own operators in every stage. Errors (kInvalidInput): those of
/// `check_pipeline`; a stage on another rank than its number; a module in two stages, a module that
/// torchtitan does not part, an operator of the model itself that computes with samples, a stage
/// without a module, and a model whose file names no modules. Needs: `graph` is the plan's.
Result<std::string> torchtitan_toml(const Plan& plan, const Graph& graph,
                                    std::string_view schedule);

}  // namespace agpcs
