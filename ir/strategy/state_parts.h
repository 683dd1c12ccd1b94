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

/// Returns the bytes for each element that replicas divide at `level`: those, and at
/// StateLevel::kGradients the sum of its gradients, at StateLevel::kParameters that and its value.
std::int64_t divided_element_bytes(const Optimizer& optimizer, DType held, StateLevel level);

/// Returns what the replicas of a stage divide: what the stage says, if it has several and there is
/// something to divide.
StateLevel divided_by(const StageSpec& spec, const Training& training);
bool divides_state(const StageSpec& spec, const Training& training);

/// A replica that may own state.
struct StateOwner {
  double speed = 0;       ///< any unit; an update moves memory, so bytes/s
  std::int64_t room = 0;  ///< elements for whose state it has memory; may be negative
};

/// What the replicas of a stage divide: the state of the parameters which it alone trains, and at
/// StateLevel::kGradients their gradients, at StateLevel::kParameters these and themselves.
class DividedState {
 public:
  DividedState(const Optimizer& optimizer, StateLevel level)
      : optimizer_(optimizer), level_(level) {}

  /// Adds `parameters` parameters that are held in `held`, of `elements` elements.
  void add(std::int64_t elements, DType held, std::size_t parameters);

  std::int64_t elements() const { return elements_; }
  std::int64_t bytes() const { return bytes_; }
  /// Returns the owner of a device of `kind`, one of `replicas`, whose memory would peak at
  /// `peak_bytes` if it owned everything.
  StateOwner owner(const DeviceKind& kind, std::int64_t peak_bytes, std::size_t replicas) const;

 private:
  Optimizer optimizer_;
  StateLevel level_;
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

/// A bucket whose gradients are divided, in the order in which buckets are summed. A backward pass
/// walks from the last operator to the first.
struct FilledBucket {
  std::int64_t bytes = 0;          ///< of its gradients
  std::int64_t rounded_bytes = 0;  ///< of those that travel, if in another type
  /// The operators that begin its first gradient and complete its last one.
  OpId first = kNone, last = kNone;
  std::int64_t last_bytes = 0;  ///< of those that `last` makes alone
  bool gathered = false;        ///< its parameters are divided, too
  /// The operator before which a backward pass needs these: `first`, or the last of its segment if
  /// that is computed again.
  OpId needed = kNone;
  /// Adds a gradient that operator `begun` begins, and operator `made` completes: the last and the
  /// first that read its parameter.
  void add(OpId begun, OpId made, std::int64_t own, std::int64_t rounded);
  /// Says that its parameters are divided, too, in a stage of `ops` whose recomputed segments end
  /// at `segment_ends`. Needs: all gradients have been added.
  void gather(std::span<const OpId> ops, std::span<const std::size_t> segment_ends);
};

/// Returns the operator before which a backward pass needs what operator `reader` of `ops` reads.
/// `segment_ends`: where the recomputed segments of `ops` end.
OpId needed_before(OpId reader, std::span<const OpId> ops,
                   std::span<const std::size_t> segment_ends);

/// A place in a backward pass where it needs the parameters of a bucket that ranks divide.
struct BucketUse {
  int bucket = 0;
  int filled = 0;  ///< buckets of divided gradients that are full by then, from the first on
  friend bool operator==(const BucketUse&, const BucketUse&) = default;
};
/// Returns these places of a stage in the order of its backward passes. Forward passes need the
/// same buckets, the last first. Cost: O(buckets x uses).
std::vector<BucketUse> backward_uses(std::span<const FilledBucket> buckets);

/// Returns the most bytes of gathered parameters that a replica holds: those that operators still
/// read, and one bucket ahead. Cost: O(uses^2).
std::int64_t gathered_bytes(std::span<const FilledBucket> buckets, std::span<const BucketUse> uses);

/// What a replica holds of the gradients of one micro-batch that are not summed yet.
struct UnsummedGradients {
  std::int64_t summing = 0;  ///< the largest bucket, and as it travels: at all times
  std::int64_t filling = 0;  ///< the most that wait in backward passes until their bucket is full,
                             ///< while an operator makes others
};
/// Returns that for a stage that divides gradients. A pass fills one bucket while the one before it
/// is summed, and goes on only then; where parameters of several buckets alternate in the graph,
/// several fill up at a time. Cost: O(buckets^2).
UnsummedGradients unsummed_gradients(std::span<const FilledBucket> buckets);

}  // namespace agpcs
