// SPDX-License-Identifier: Apache-2.0
// Purpose: which problems a model family, a cluster shape or a device kind is generated for.
#pragma once

namespace agpcs {

/// What a purpose does not name is held out of its problems (docs/policy.md). Problems may have
/// devices of earlier purposes beside their own.
enum class Purpose {
  kTraining,    ///< drawn by the training generator
  kRegression,  ///< of the 40 problems that refiners were compared on first
  kJudging,     ///< of the 60 problems that refiners are compared on
};

}  // namespace agpcs
