// SPDX-License-Identifier: Apache-2.0
// Readers of the parts of a plan's text that know nothing of each other. Errors go to
// `diagnostics`.
#pragma once

#include "ir/base/diagnostics.h"
#include "ir/plan/lines.h"

#include <agpcs/plan.h>

#include <vector>

namespace agpcs {

/// Reads everything between the first line and the stages.
void read_header(PlanLines& lines, Diagnostics& diagnostics, Plan& plan);

/// Read a section, of which `line` is the first line and `lines` has the items.
PlanStage read_stage(const PlanLine& line, PlanLines& lines, Diagnostics& diagnostics);
Cut read_cut(const PlanLine& line, PlanLines& lines, Diagnostics& diagnostics);
PlanFlow read_flow(const PlanLine& line, const std::vector<PlanStage>& stages, PlanLines& lines,
                   Diagnostics& diagnostics);
PlanBucket read_bucket(const PlanLine& line, PlanLines& lines, Diagnostics& diagnostics);

}  // namespace agpcs
