// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/graph/graph.h"
#include "runtime/torch/executor.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Creates `folder` if it does not exist. Called before a rank starts, so that no training is lost
/// to a folder that cannot be created.
Status make_save_folder(const std::string& folder);

/// Writes the parameters and states of `rank`'s stage to `folder` as fp32 .npy files. Only the
/// first of a stage's replicas writes. A file is named by its tensor, with every byte outside A-Z
/// a-z 0-9 . _ - as %XX.
Status save_parameters(const Graph& graph, const Plan& plan, int rank,
                       const TorchExecutor& executor, const std::string& folder);

/// Returns "fc1%2Fweight" for "fc1/weight".
std::string file_name_of(std::string_view tensor);

}  // namespace agpcs
