// SPDX-License-Identifier: Apache-2.0
// Purpose: the problems for which a model family, a cluster shape or a device kind is generated.
#pragma once

namespace agpcs {

/// Problems of a purpose hold out what is for later purposes (docs/design/policy.md). They may have
/// devices of earlier purposes beside their own.
enum class Purpose {
  kTraining,    ///< what the training generator draws
  kRegression,  ///< the 40 problems on which refiners were compared first
  kJudging,     ///< the 60 problems on which refiners are compared
};

}  // namespace agpcs
