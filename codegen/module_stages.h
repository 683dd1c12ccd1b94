// SPDX-License-Identifier: Apache-2.0
// The operators of a plan's model, as exports to stages of whole modules look at them.
#pragma once

#include "codegen/pipeline_reader.h"
#include "ir/graph/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// An operator that computes the model's outputs, and not the loss that was attached to them.
struct StagedOp {
  OpId op = kNone;
  int stage = 0;
  bool reads_samples = true;  ///< its outputs depend on the samples of a step
};

/// Returns the operators of the model, in their order, without those of an attached loss. Needs:
/// `graph` is the plan's. Errors (kInvalidInput): those of `check_pipeline`; stage i is not on rank
/// i; the model's file names no modules. Cost: O(operators + edges).
Result<std::vector<StagedOp>> staged_ops(const Plan& plan, const Graph& graph,
                                         const PipelineReader& reader);

/// Returns the error for an operator that is in the way of stages of whole modules.
Status not_whole(const Graph& graph, OpId op, std::string_view what);

}  // namespace agpcs
