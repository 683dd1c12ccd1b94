// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/graph.h"
#include "runtime/torch_executor.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Makes `folder` if it is not there: before a rank starts, so that no training is lost to a
/// folder that cannot be.
Status make_save_folder(const std::string& folder);

/// Writes the parameters and states of `rank`'s stage as fp32 .npy files to `folder`. Of a stage's
/// replicas the first one writes. A file is named by its tensor, with every byte outside A-Z a-z
/// 0-9 . _ - as %XX.
Status save_parameters(const Graph& graph, const Plan& plan, int rank,
                       const TorchExecutor& executor, const std::string& folder);

/// "fc1/weight" as "fc1%2Fweight".
std::string file_name_of(std::string_view tensor);

}  // namespace agpcs
