// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/graph.h"
#include "runtime/torch_executor.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Writes the parameters and states of `rank`'s stage as fp32 .npy files to `folder`, which is made
/// if it is not there. Of a stage's replicas the first one writes. A file is named by its tensor,
/// with every byte outside A-Z a-z 0-9 . _ - as %XX.
Status save_parameters(const Graph& graph, const Plan& plan, int rank,
                       const TorchExecutor& executor, const std::string& folder);

/// "fc1/weight" as "fc1%2Fweight".
std::string file_name_of(std::string_view tensor);

}  // namespace agpcs
