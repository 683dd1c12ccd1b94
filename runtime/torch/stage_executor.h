// SPDX-License-Identifier: Apache-2.0
// The LibTorch executor of one stage.
#pragma once

#include "runtime/torch/executor.h"

#include <memory>

namespace agpcs {

/// Makes an executor of stage `stage`, whichever stage its passes name. `graph` and `options`,
/// which have data, must outlive it; the executors of a rank's stages have them in common.
std::unique_ptr<TorchExecutor> make_stage_executor(const Graph& graph, const TorchOptions& options,
                                                   int stage);

}  // namespace agpcs
