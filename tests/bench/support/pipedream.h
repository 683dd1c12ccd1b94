// SPDX-License-Identifier: Apache-2.0
// Profiled graphs of PipeDream (msr-fiddle/pipedream): backward times beside gradient sizes.
#pragma once

#include "planner/evaluate/bucket_schedule.h"

#include <filesystem>
#include <vector>

namespace agpcs {

/// Data parallelism: every GPU runs forward, then backward through the graph's operators in reverse
/// topological order (ties: the node's number); an operator's gradient is ready when its backward
/// is over. Loading data (Input) takes no time.
struct ProfiledModel {
  double compute = 0;  ///< forward and backward, seconds
  std::vector<ReadyGradient> gradients;
  std::vector<double> backward;  ///< of each operator, in that order
};

ProfiledModel read_pipedream(const std::filesystem::path& path);

}  // namespace agpcs
