// SPDX-License-Identifier: Apache-2.0
// From the options of agpcs-run to the files of samples.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/torch/data/data.h"
#include "tools/run/options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <memory>

namespace agpcs {

/// Returns the files that --data and --labels name. Error: kUsage, the plan's loss takes no labels,
/// or a factor of --scale is none.
Result<DataFiles> training_files(const Graph& graph, const Plan& plan, const RunOptions& options,
                                 std::uint64_t seed);

/// Opens the files that --validate names. Errors: they do not feed an input that those of
/// `training` do, or, if training has none, an input of samples.
Result<std::unique_ptr<DataSource>> open_validation(const Graph& graph, const RunOptions& options,
                                                    const DataSource& training, std::uint64_t seed);

}  // namespace agpcs
