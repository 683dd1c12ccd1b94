// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <string>
#include <string_view>

namespace agpcs {

/// Creates `folder` if it does not exist. Called before a rank starts, so that no training is lost
/// to a folder that cannot be created.
Status make_save_folder(const std::string& folder);

/// Writes all parameters and states to `folder` as fp32 .npy files. All ranks call it; the first
/// rank of each stage writes those of the stage, and gets what other ranks have of them. A file is
/// named by its tensor, with every byte outside A-Z a-z 0-9 . _ - as %XX, and takes the place of an
/// older one once it is whole.
Status save_parameters(const Graph& graph, const Plan& plan, const Executor& executor,
                       const std::string& folder, Transport& transport,
                       std::chrono::milliseconds limit);

/// Returns "fc1%2Fweight" for "fc1/weight".
std::string file_name_of(std::string_view tensor);

}  // namespace agpcs
