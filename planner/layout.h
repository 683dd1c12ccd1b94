// SPDX-License-Identifier: Apache-2.0
// Layout: stages and device groups that a user asks for, as agpcs-compile's --layout gives them.
#pragma once

#include "ir/cluster.h"
#include "planner/seeder.h"

#include <agpcs/status.h>

#include <memory>
#include <string_view>
#include <vector>

namespace agpcs {

struct Layout {
  struct Stage {
    std::vector<DeviceId> devices;  ///< ascending
    std::vector<double> weights;    ///< parallel to `devices`; empty: shares by speed
  };
  std::vector<Stage> stages;  ///< in pipeline order
};

/// "a/0:3,b/0:1|c/0,d/0": stages separated by '|', devices by ','; after ':' the weight by which a
/// device gets samples (all devices of a stage have one, or none has). Errors are kUsage: a device
/// that is not there (did you mean) or twice, a weight that is not positive, an empty stage.
Result<Layout> parse_layout(std::string_view text, const Cluster& cluster);

/// Candidates of exactly that layout, one for each number of micro-batches worth trying: stages are
/// contiguous in the topological order of blocks, cut such that the slowest stage or cut of a
/// micro-batch is fastest (dynamic programming, exact for the shares that the devices have of the
/// whole model). None where there are fewer blocks than stages, or fewer samples than devices.
/// Cost: O(stages x blocks^2) for each.
std::unique_ptr<Seeder> make_layout_seeder(Layout layout);

}  // namespace agpcs
