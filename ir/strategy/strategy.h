// SPDX-License-Identifier: Apache-2.0
// Strategy: what the planner decides. `lower` turns it into a Plan.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/team/body.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// How a stage keeps less on its devices between the passes of a micro-batch: it has `segments`
/// segments (ir/strategy/segments.h), and all but the last `kept` of them do one of these, or both:
/// - they compute their forward pass `again`, each just before its own backward pass, and keep what
///   they read alone;
/// - what they keep lies in the memory of the host (ir/strategy/offload.h).
/// The kept ones keep all that they need on the device.
struct Recomputation {
  int segments = 0;  ///< 0: the stage keeps all on its devices
  int kept = 0;      ///< fewer than `segments`
  bool again = true;
  bool in_host = false;
  explicit operator bool() const { return segments > 0; }
  /// Returns about which part of the forward pass is computed again.
  double part() const { return again ? segment_part() : 0; }
  /// Returns the part of the segments that are not kept.
  double segment_part() const {
    return segments == 0 ? 0 : static_cast<double>(segments - kept) / segments;
  }
  friend auto operator<=>(const Recomputation&, const Recomputation&) = default;
};
/// All operators of the stage are recomputed at once.
inline constexpr Recomputation kWholeStage = {1, 0};

/// A stage's device group: replicas, of which each is a device or a team of devices that divide
/// operators. Replica i takes `shares[i]` samples of every micro-batch. Micro-batches are as equal
/// as can be, larger ones first. Where they differ, shares are those of the larger ones and one
/// replica (`odd_replica`) takes a sample less of the smaller ones.
struct StageSpec {
  std::vector<DeviceId> devices;     ///< of replicas, of teams their first members; ascending
  std::vector<std::int64_t> shares;  ///< parallel to `devices`, each > 0
  Recomputation recompute = {};
  /// What the devices divide (ir/strategy/state_parts.h), except for parameters that other stages
  /// read, too.
  StateLevel state = StateLevel::kWhole;
  DeviceId odd = kNone;  ///< the wish for `odd_replica`; kNone where micro-batches are equal
  /// With 1F1B, whose backward passes may be parted, the most micro-batches between their passes;
  /// none: `textbook_in_flight`.
  std::optional<std::int64_t> in_flight = std::nullopt;
  /// Where replicas are teams: what members do, an index into Strategy::bodies, and the further
  /// members of each replica in the body's order, parallel to `devices`. Else kNone, and empty.
  int body = kNone;
  std::vector<std::vector<DeviceId>> further = {};
  /// The optimizer's state lies in the memory of the devices' hosts (ir/strategy/offload.h).
  bool state_in_host = false;
  /// Where replicas have unlike bodies: that of each, parallel to `devices`, in the order in which
  /// replicas first have them; `body` is the first. One that computes alone has a body of one
  /// member, and no further ones. Else empty.
  std::vector<int> bodies = {};
  bool has_teams() const { return body != kNone; }
  bool has_unlike_teams() const { return !bodies.empty(); }
  int body_of(std::size_t replica) const { return bodies.empty() ? body : bodies[replica]; }
  friend bool operator==(const StageSpec&, const StageSpec&) = default;
};

/// Returns all devices of a stage, members of teams included, ascending.
std::vector<DeviceId> all_devices(const StageSpec& spec);
/// Returns the bodies of a stage, from its first to the one behind its last.
struct BodyRange {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
};
BodyRange bodies_of(const StageSpec& spec);
/// Returns the members of a replica: its device, and where it is a team the further ones.
std::vector<DeviceId> members_of(const StageSpec& spec, std::size_t replica);

/// Returns which replica takes a sample less of smaller micro-batches: that of device `odd` if it
/// has two samples or more, otherwise the first of those with most samples.
std::size_t odd_replica(const StageSpec& spec);

/// Gives a stage the devices of `group`, with their shares. All else of it stays.
void set_group(StageSpec& spec, StageSpec group);

/// Returns the samples of the largest of `micro_batches` micro-batches.
constexpr std::int64_t largest_micro_batch(std::int64_t batch, std::int64_t micro_batches) {
  return (batch + micro_batches - 1) / micro_batches;
}

/// Returns whether the shares of a stage cover micro-batches of `batch` samples: they sum to the
/// largest, and if there are smaller ones, some device has a sample to spare.
bool covers(const StageSpec& spec, std::int64_t batch, std::int64_t micro_batches);

/// Gradients that are reduced together, in the order in which they lie in the buffer.
struct Bucket {
  int stage = 0;  ///< the first of the stages that read its parameters
  AllReduce algorithm = AllReduce::kRing;
  std::vector<TensorId> parameters;
  int flow = -1;                      ///< index into Strategy::flows with AllReduce::kFlow, else -1
  std::vector<int> shared_with = {};  ///< the other stages that read its parameters, ascending
  /// By device of its stages, ascending: the elements that it owns. Empty: as the stage divides its
  /// state (ir/strategy/state_parts.h), which it does by itself only where none of its buckets has
  /// parts.
  std::vector<std::int64_t> parts = {};
  StateLevel state = StateLevel::kWhole;  ///< what `parts` divide
  bool is_shared() const { return !shared_with.empty(); }
  bool is_of(int of_stage) const;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

struct Strategy {
  std::vector<int> stage_of;  ///< by OpId; every edge goes to the same or a later stage (convex)
  std::vector<StageSpec> stages;
  std::int64_t micro_batches = 1;
  Schedule schedule = Schedule::k1F1B;
  std::vector<Bucket> buckets;  ///< in all-reduce order; empty until gradients are grouped
  std::vector<PlanFlow> flows;  ///< the flows that buckets name; their own names do not matter
  std::vector<TeamBody> bodies = {};  ///< of the stages that have teams, in their order
  friend bool operator==(const Strategy&, const Strategy&) = default;
};

/// Returns the most micro-batches that stage `stage` has between their passes: all with GPipe; a
/// bound, all, where schedules interleave.
std::int64_t most_in_flight(const Strategy& strategy, std::size_t stage);
/// Returns that of each stage.
std::vector<std::int64_t> in_flight_by_stage(const Strategy& strategy);
/// Returns how many weight passes stage `stage` puts off where backward passes are parted: as many
/// as it has fewer micro-batches in flight than the stage that has most. So no stage holds
/// something of more micro-batches than that stage, and with 1F1B's numbers it is ZB-H1.
std::int64_t weight_lag(const std::vector<std::int64_t>& in_flight, std::size_t stage);

/// Returns whether backward passes may be parted: no stage recomputes, or divides
/// gradients or parameters.
bool may_part_backward(const Strategy& strategy);

/// Checks a strategy against its problem:
/// - every operator is in a stage, edges never go back, no stage is empty;
/// - devices exist and serve one stage each, or several if the schedule is interleaved
///   (ir/strategy/interleaved.h);
/// - shares cover the micro-batches in every stage (`covers`);
/// - operators that share running statistics share a stage;
/// - tensors that cross stages may do so (`can_cross`);
/// - a stage has between 1 and all micro-batches in flight, and no fewer than a stage to which it
///   sends a tensor with a gradient. GPipe has no such numbers;
/// - backward passes are parted only if they may be (`may_part_backward`);
/// - if there are buckets, each parameter is in exactly one, which is of the stages that read it;
/// - flows sum (`verify_flow`), belong to the stages of their buckets, and are all used; no bucket
///   of several stages has one, and no stage that divides its state;
/// - parts of buckets are of stages that divide their state, and each element has one owner;
/// - state in the memory of hosts is of stages that can have it there (`why_not_offload`), and so
///   are activations (`why_not_activations`);
/// - teams are as ir/strategy/teams.h says.
///
/// Why this is what 1F1B needs, with d[s] micro-batches in flight in stage s: forward k of s waits
/// for backward k - d[s] of s, and for forward k of each stage from which s receives. Backward m of
/// s waits for forward m + d[s] - 1 of s, or the last one, and for backward m of each stage that
/// sends s a gradient. A cycle of waits would go, in turns, from a backward to a forward of some
/// stage s, through forwards to an earlier stage p (or s itself), to a backward of p, and along
/// gradients to a backward of a later stage, where the next turn begins. Each turn adds d[s] - 1 to
/// the number of the micro-batch and takes d[p] from it. That d[p] is no less than the d[s] of the
/// next turn, as gradients join the two. So all turns together lower the number, and no cycle
/// closes. Where d[p] < d[s], one does: backward 0 of s waits for forward d[s] - 1 of p, that for
/// backward d[s] - 1 - d[p] of p, and that for the same of s. Only stages that exchange gradients
/// need be compared, whatever skips and branches there are. Messages add no cycle
/// (codegen/stage_program.h). Where backward passes are parted, this holds of input passes; weight
/// passes wait for an earlier pass of their own stage alone, so they close no cycle either.
Status verify_strategy(const Strategy& strategy, const Graph& graph, const Cluster& cluster,
                       std::int64_t batch);

/// Returns, by TensorId, whether a stage boundary may cut the tensor. It may in two cases. Either
/// axis 0 of the tensor is the batch axis {0, 1} and no other extent depends on the batch, so that
/// replicas exchange rows. Or the tensor does not depend on the samples at all, neither in shape
/// nor in value: a replica with other samples cannot use a mean over the samples of one replica.
/// Cost: O(operators + edges).
std::vector<bool> can_cross(const Graph& graph);

/// Repairs the flows after stages or buckets have changed: a bucket whose flow no longer fits its
/// stage is reduced by a ring, buckets with other algorithms name no flow, and flows that serve no
/// bucket are dropped.
void fit_flows(Strategy& strategy);

/// Returns whether a bucket of stage `stage` has parts of its own.
bool has_own_parts(const Strategy& strategy, int stage);
/// Lets stage `stage` divide its state by itself: its buckets have no parts of their own any more.
void forget_parts(Strategy& strategy, int stage);

/// Repairs what stages have in flight after stages, micro-batches or the schedule have changed: no
/// stage has more than an earlier one, or than there are micro-batches, and one that has what the
/// textbook says does not say so. Backward passes that may not be parted are not: that is 1F1B.
void fit_in_flight(Strategy& strategy);

/// Returns "recompute", "recompute=5/8" for 5 of 8 segments, "activations-in=host:5/8", both, or
/// nothing if all is kept on devices.
std::string print_recomputation(const Recomputation& recompute);

std::string print_strategy(const Strategy& strategy, const Graph& graph, const Cluster& cluster);

}  // namespace agpcs
