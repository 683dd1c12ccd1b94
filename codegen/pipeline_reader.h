// SPDX-License-Identifier: Apache-2.0
// What other programs that run pipelines can take of a plan.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string_view>

namespace agpcs {

/// A program that runs pipelines of stages on one rank each, and sends from stage to stage.
struct PipelineReader {
  std::string_view name;  ///< as messages call it: "PyTorch's runtime"
  /// Each of its stages computes what depends neither on samples nor on parameters itself.
  bool repeats_constants = false;
  /// It sums the gradients of a parameter that is in the first and the last stage.
  bool ties_ends = false;
};

/// Checks that `reader` can run the plan's stages and micro-batches. Errors (kInvalidInput): a plan
/// of one stage, a stage with several ranks, a tensor that skips a stage or has no samples, a
/// parameter in several stages, and micro-batches of unequal size.
Status check_pipeline(const Plan& plan, const PipelineReader& reader);

}  // namespace agpcs
