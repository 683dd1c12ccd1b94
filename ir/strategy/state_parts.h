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

/// The state that the replicas of a stage divide: that of the parameters which it alone trains.
class DividedState {
 public:
  explicit DividedState(const Optimizer& optimizer) : optimizer_(optimizer) {}

  /// Adds the state of `parameters` parameters that are held in `held`, of `elements` elements.
  void add(std::int64_t elements, DType held, std::size_t parameters);

  std::int64_t elements() const { return elements_; }
  std::int64_t bytes() const { return bytes_; }
  /// Returns the owner of a device of `kind`, one of `replicas`, whose memory would peak at
  /// `peak_bytes` if it had all of the state.
  StateOwner owner(const DeviceKind& kind, std::int64_t peak_bytes, std::size_t replicas) const;

 private:
  Optimizer optimizer_;
  std::int64_t elements_ = 0, bytes_ = 0;
  std::int64_t widest_ = 0;  // bytes for an element, where they are most
  std::size_t parameters_ = 0;
};

/// Divides the state of `elements` elements: in proportion to speed, so that all updates take
/// equally long, as far as there is room. Where there is not enough room for all, every replica
/// lacks equally much. The parts sum to `elements`. Needs: speeds above 0. Cost: O(owners^2) at
/// most, O(owners) if all have room.
std::vector<std::int64_t> divide_state(std::int64_t elements, std::span<const StateOwner> owners);

/// Returns the parts of a bucket of `elements` elements, in proportion to what each replica owns of
/// its stage: rounded down, and the rest to the first of the largest parts.
std::vector<std::int64_t> bucket_parts(std::int64_t elements, std::span<const std::int64_t> owned);

}  // namespace agpcs
