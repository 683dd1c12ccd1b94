// SPDX-License-Identifier: Apache-2.0
// Computes how long each rank computes: the cost table summed over the operators of its stage.
#pragma once

#include "cost_model/step/model.h"

namespace agpcs {

/// Fills the `times` of the model's ranks, whose stages and devices are known. Ranks with equal
/// kinds and equal shares are summed once.
Status add_times(const Plan& plan, const Graph& graph, const Cluster& cluster,
                 const CostTable& costs, StepModel& model);

}  // namespace agpcs
