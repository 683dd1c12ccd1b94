// SPDX-License-Identifier: Apache-2.0
// The optimizer's state and activations in the memory of hosts: what devices hold of the state, how
// long updates take, and how much longer passes.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/strategy.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/training.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// The most elements whose state travels at a time.
inline constexpr std::int64_t kOffloadPiece = std::int64_t{1} << 20;
/// The pieces that a device holds: one that comes in, one that is updated, one that goes out.
inline constexpr std::int64_t kOffloadWindow = 3;

/// Moves a stage's optimizer state to the host: the device keeps the window alone.
void move_state_to_host(const Training& training, StageMemory& memory);

/// Returns the seconds of an update of `elements` elements that takes `update` seconds by itself,
/// where their state of `bytes` bytes each comes from the host and goes back there. All pieces are
/// of one size. Copies in both directions and the updates run at the same time, piece by piece; a
/// piece comes in when the third before it has gone out.
/// Needs: `link.given()`.
double offloaded_seconds(double update, std::int64_t elements, std::int64_t bytes,
                         const HostLink& link);

/// Returns the seconds of a copy between a device and its host. Needs: `link.given()`, or no bytes.
double copy_seconds(std::int64_t bytes, const HostLink& link);

/// Returns the seconds of the copies of segments.
std::vector<double> copies_of(const std::vector<std::int64_t>& bytes, const HostLink& link);

/// The turns of a pass that copies between a device and its host what segments of its stage keep. A
/// turn is a segment's computation, and the copy beside it. It takes as long as the slower of both.
class CopyTurns {
 public:
  /// Ends a turn that began with the pass or the last call, and has computed until `elapsed`: it
  /// waits for the turn's copy. The next turn has one of `copy` seconds.
  void next(double copy, double& elapsed) {
    elapsed = std::max(elapsed, begin_ + copy_);
    begin_ = elapsed;
    copy_ = copy;
  }

 private:
  double begin_ = 0, copy_ = 0;
};

/// Returns the seconds of a forward pass over `operators` operators, of which operator i takes
/// `seconds_of(i)`. The segments end at `segment_ends`, the first of them have copies (none, if
/// nothing goes to the host). What a segment keeps goes there in the turn behind its own.
template <typename F>
double forward_seconds(std::size_t operators, const std::vector<std::size_t>& segment_ends,
                       const std::vector<double>& copies, F seconds_of) {
  double elapsed = 0;
  CopyTurns turns;
  std::size_t segment = 0;
  for (std::size_t i = 0; i < operators; ++i) {
    elapsed += seconds_of(i);
    if (segment == copies.size() || i + 1 < segment_ends[segment]) continue;
    turns.next(copies[segment++], elapsed);
  }
  turns.next(0, elapsed);
  return elapsed;
}

/// The turns of a backward pass: what a segment keeps comes back in the turn before its own, which
/// is that of the segment behind it.
class BackwardTurns {
 public:
  /// The pass begins. `copies` outlives this object.
  explicit BackwardTurns(const std::vector<double>& copies)
      : copies_(copies), left_(copies.size()) {
    double elapsed = 0;
    next(elapsed);
  }
  /// Begins the turn of the next segment when `elapsed` seconds have been computed.
  void next(double& elapsed) { turns_.next(left_ == 0 ? 0 : copies_[--left_], elapsed); }

 private:
  const std::vector<double>& copies_;
  std::size_t left_;
  CopyTurns turns_;
};

/// Returns whether some device has a link to a host with memory.
bool can_offload(const Cluster& cluster);
/// Returns whether the optimizer has state, too.
bool can_offload(const Cluster& cluster, const Training& training);
/// Returns why the state of stage `stage` cannot be in the memory of hosts: "device a/0 has no
/// host_link". Empty: it can, if the optimizer has some.
std::string why_not_offload(const Strategy& strategy, std::size_t stage, const Cluster& cluster);
/// Returns the same of activations: besides, they stay where backward passes are parted, or
/// parameters divided.
std::string why_not_activations(const Strategy& strategy, std::size_t stage,
                                const Cluster& cluster);
/// Checks that stages which have something there can. Error: kInternal.
Status check_offload(const Strategy& strategy, const Cluster& cluster);
/// Lets all stages that cannot have their state or activations there keep them on their devices;
/// such activations are computed again.
void fit_offload(Strategy& strategy, const Cluster& cluster);

/// Checks that each rank that has something in the memory of its host has a link to it, and that
/// the memory of each host is enough for what its ranks keep there: `uses`, by rank. Errors:
/// kInvalidInput, kInfeasible.
Status check_host_memory(const Plan& plan, const std::vector<MemoryUse>& uses,
                         const Cluster& cluster);

}  // namespace agpcs
