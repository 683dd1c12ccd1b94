// SPDX-License-Identifier: Apache-2.0
// How the replicas of a stage divide the optimizer's state among them.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/strategy/strategy.h"

#include <agpcs/training.h>
#include <agpcs/types.h>

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// Returns the bytes that the optimizer keeps for each element of a parameter that is held in
/// `held`: momentum or moments, and in half precision a copy in fp32.
std::int64_t state_bytes(const Optimizer& optimizer, DType held);
/// Returns that for parameters in fp32 or the precision's half.
std::int64_t state_bytes(const Training& training);

/// Returns whether the replicas of a stage divide its state: the stage says so, has several, and
/// the optimizer keeps something.
bool divides_state(const StageSpec& spec, const Training& training);

/// A replica that may own state.
struct StateOwner {
  double speed = 0;       ///< any unit; an update moves memory, so bytes/s
  std::int64_t room = 0;  ///< elements for whose state it has memory; may be negative
};
/// Returns the owner of a device of `kind` that needs `other_bytes` besides divided state, which is
/// `each` bytes an element of `parameters` parameters of a stage with `replicas` replicas.
StateOwner state_owner(const DeviceKind& kind, std::int64_t other_bytes, std::int64_t each,
                       std::size_t parameters, std::size_t replicas);

/// Divides the state of `elements` elements: in proportion to speed, so that all updates take
/// equally long, as far as there is room. Where there is not enough room for all, every replica
/// lacks equally much. The parts sum to `elements`. Needs: speeds above 0. Cost: O(owners^2) at
/// most, O(owners) if all have room.
std::vector<std::int64_t> divide_state(std::int64_t elements, std::span<const StateOwner> owners);

/// Returns the parts of a bucket of `elements` elements, in proportion to what each replica owns of
/// its stage: rounded down, and the rest to the first of the largest parts.
std::vector<std::int64_t> bucket_parts(std::int64_t elements, std::span<const std::int64_t> owned);

}  // namespace agpcs
