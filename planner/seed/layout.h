// SPDX-License-Identifier: Apache-2.0
// Layout: stages and device groups that a user asks for with agpcs-compile's --layout.
#pragma once

#include "ir/cluster/cluster.h"
#include "planner/seed/seeder.h"

#include <agpcs/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace agpcs {

struct Layout {
  struct Stage {
    std::vector<DeviceId> devices;  ///< ascending
    std::vector<double> weights;    ///< parallel to `devices`; if empty, shares go by speed
    std::optional<std::int64_t> in_flight = std::nullopt;  ///< as in StageSpec
  };
  std::vector<Stage> stages;  ///< in pipeline order
  Schedule schedule = Schedule::k1F1B;
};

/// Parses "a/0:3,b/0:1,in-flight=3|c/0,d/0|schedule=zero-bubble": '|' separates stages, ','
/// devices; after ':' stands the weight by which a device gets samples (all devices of a stage have
/// one, or none has); in-flight= says how many micro-batches the stage has in flight; schedule=, in
/// the last place, is 1f1b if it is left out. Errors are kUsage: a device that does not exist (did
/// you mean) or appears twice, a weight that is not positive, an empty stage, a stage that has more
/// in flight than an earlier one, an unknown schedule, one that has no effect.
Result<Layout> parse_layout(std::string_view text, const Cluster& cluster);

/// Makes a seeder whose candidates have exactly that layout, one for each number of micro-batches
/// worth trying. Stages are contiguous in the topological order of blocks. They are cut such that
/// the slowest stage or cut of a micro-batch is fastest (dynamic programming, exact for the shares
/// that the devices have of the whole model). There are no candidates if there are fewer blocks
/// than stages, or fewer samples than devices, or fewer micro-batches than are to be in flight.
/// Cost: O(stages x blocks^2) for each.
std::unique_ptr<Seeder> make_layout_seeder(Layout layout);

}  // namespace agpcs
