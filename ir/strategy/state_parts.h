// SPDX-License-Identifier: Apache-2.0
// How the replicas of a stage divide the optimizer's state among them.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/strategy/strategy.h"

#include <agpcs/training.h>
#include <agpcs/types.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {

/// Returns the bytes that the optimizer keeps for each element of a parameter that is held in
/// `held`: momentum or moments, and in half precision a copy in fp32.
std::int64_t state_bytes(const Optimizer& optimizer, DType held);
/// Returns that for parameters in fp32 or the precision's half.
std::int64_t state_bytes(const Training& training);

/// Returns the bytes on a device for each element that replicas divide at `level`: those, unless
/// they are `in_host`, and at StateLevel::kGradients the sum of its gradients, at
/// StateLevel::kParameters that and its value.
std::int64_t divided_element_bytes(const Optimizer& optimizer, DType held, StateLevel level,
                                   bool in_host);

/// Returns what the replicas of a stage divide: what the stage says, if it has several and there is
/// something to divide.
StateLevel divided_by(const StageSpec& spec, const Training& training);
bool divides_state(const StageSpec& spec, const Training& training);

/// A replica that may own state.
struct StateOwner {
  /// Any unit; an update moves memory, and state that is in the host's goes over the link there: so
  /// bytes/s.
  double speed = 0;
  std::int64_t room = 0;  ///< elements for whose state it has memory; may be negative
};

/// What the replicas of a stage divide: the state of the parameters which it alone trains, and at
/// StateLevel::kGradients their gradients, at StateLevel::kParameters these and themselves.
class DividedState {
 public:
  /// `in_host`: the state is in the memory of hosts, so that it takes none of devices.
  DividedState(const Optimizer& optimizer, StateLevel level, bool in_host)
      : optimizer_(optimizer), level_(level), in_host_(in_host) {}

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
  bool in_host_;
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
  OpId read = kNone;            ///< the last operator that reads its parameters, or views of them
  bool gathered = false;        ///< its parameters are divided, too
  /// The operator before which a backward pass needs these: `read`, or the last of its segment if
  /// that is computed again.
  OpId needed = kNone;
  /// Adds a gradient that operator `begun` begins, and operator `made` completes: the last and the
  /// first that read its parameter itself. Operator `reads` is the last that reads it or a view.
  void add(OpId reads, OpId begun, OpId made, std::int64_t own, std::int64_t rounded);
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

/// Bytes that come before a pass computes an operator, and those that come when it has.
struct HeldChange {
  OpId op = kNone;
  std::int64_t before = 0, after = 0;
};

/// What a replica holds in its passes of gradients that are not summed yet, and of parameters that
/// it has gathered.
struct HeldInPasses {
  std::int64_t summing = 0;  ///< the largest bucket, and as it travels: at all times
  std::int64_t ahead = 0;    ///< gathered for the next pass, between two passes
  std::int64_t at_forward = 0, at_backward = 0;  ///< gathered when a pass begins
  std::vector<HeldChange> forward, backward;     ///< in the order of the pass, each operator once
};
/// Returns that for a stage that divides gradients. `uses`: its `backward_uses`. A pass fills one
/// bucket while the one before it is summed, and goes on only then; where parameters of several
/// buckets alternate in the graph, several fill up at a time. Of gathered parameters it holds those
/// that operators still read, and one bucket ahead. Cost: O(buckets log buckets).
HeldInPasses held_in_passes(std::span<const FilledBucket> buckets, std::span<const BucketUse> uses);

/// Walks through the changes of a pass with its operators.
class HeldWalk {
 public:
  HeldWalk(std::int64_t held, std::span<const HeldChange> changes)
      : held_(held), changes_(changes) {}
  /// Returns what is held while the pass computes `op`. Needs: no change before it is left.
  std::int64_t begin(OpId op) {
    if (is_at(op)) held_ += std::exchange(before_, true) ? 0 : changes_.front().before;
    return held_;
  }
  void end(OpId op) {
    if (!is_at(op)) return;
    held_ += changes_.front().after;
    changes_ = changes_.subspan(1);
    before_ = false;
  }
  std::int64_t held() const { return held_; }

 private:
  bool is_at(OpId op) const { return !changes_.empty() && changes_.front().op == op; }

  std::int64_t held_;
  std::span<const HeldChange> changes_;
  bool before_ = false;  // the first change's `before` is counted
};

}  // namespace agpcs
