// SPDX-License-Identifier: Apache-2.0
// The LibTorch executor of one stage.
#pragma once

#include "runtime/torch/cuts.h"
#include "runtime/torch/executor.h"

#include <memory>

namespace agpcs {

class OneStageExecutor : public TorchExecutor {
 public:
  /// What it receives and sends. What local cuts bring (`is_local`) is for the caller to
  /// take.
  virtual CutBuffers& cuts() = 0;
};

/// Makes an executor of stage `stage`, whichever stage its passes name. `graph` and `options`,
/// which have data, must outlive it; the executors of a rank's stages have them in common.
std::unique_ptr<OneStageExecutor> make_stage_executor(const Graph& graph,
                                                      const TorchOptions& options, int stage);

}  // namespace agpcs
