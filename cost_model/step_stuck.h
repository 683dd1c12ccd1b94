// SPDX-License-Identifier: Apache-2.0
// Why a step cannot finish: who waits for whom.
#pragma once

#include "cost_model/step_engine.h"
#include "cost_model/step_model.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

namespace agpcs {

/// Names the first instruction of each stream that waits, and for what. Needs: the engine's run of
/// `model` did not finish.
Status stuck_error(const Plan& plan, const StepModel& model, const StepEngine& engine);

}  // namespace agpcs
