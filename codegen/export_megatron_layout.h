// SPDX-License-Identifier: Apache-2.0
// A pipeline's stages as a layout of Megatron.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>

namespace agpcs {

/// Prints the stages of a transformer as the option `--pipeline-model-parallel-layout` of
/// Megatron-LM has them, "Et*3|t*2|tL": E is what the model computes before its list of layers, t a
/// layer, L what it computes behind them. What depends on no samples counts for nothing: it is with
/// its reader, or each stage of Megatron computes it itself. Errors (kInvalidInput): those of
/// `check_pipeline`, where a parameter may be in the first and the last stage; a stage on another
/// rank than its number; no list of layers, or two; a layer in two stages, or in another order than
/// its number says; an operator before the layers that is not in the first stage, or one behind
/// them that is not in the last; and a model whose file names no modules. Needs: `graph` is the
/// plan's.
Result<std::string> megatron_layout(const Plan& plan, const Graph& graph);

}  // namespace agpcs
