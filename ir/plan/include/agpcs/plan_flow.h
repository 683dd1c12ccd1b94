// SPDX-License-Identifier: Apache-2.0
// PlanFlow: an all-reduce of a plan as messages between the ranks of a stage.
#pragma once

#include <agpcs/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// One message of a flow: it carries one sub-chunk from one member to another.
struct FlowMessage {
  int from = 0, to = 0;  ///< positions in the stage's ranks ("members")
  int chunk = 0;         ///< owner x sub_chunks + sub-chunk; the owner is a member
  friend bool operator==(const FlowMessage& a, const FlowMessage& b) {
    return a.from == b.from && a.to == b.to && a.chunk == b.chunk;
  }
};

/// Member `to` begins a round only when member `from` has finished all rounds before it.
struct FlowWait {
  int from = 0, to = 0;
  friend bool operator==(const FlowWait& a, const FlowWait& b) {
    return a.from == b.from && a.to == b.to;
  }
};

/// The part of a round of a flow that belongs to one phase. In the reduce-scatter, a receiver adds
/// what it gets to what it has; in the all-gather, it replaces what it has by what it gets.
struct FlowStep {
  bool gathers = false;               ///< true in the all-gather
  std::vector<FlowMessage> messages;  ///< by from, to, chunk; at least one, all different
  std::vector<FlowWait> after;        ///< by from, to, all different; only with FlowOrder::kRounds
  friend bool operator==(const FlowStep& a, const FlowStep& b) {
    return a.gathers == b.gathers && a.messages == b.messages && a.after == b.after;
  }
};

/// The order in which the messages of a flow move. Ranks, transports and the simulator follow it.
/// - `kReceivers` ("receivers", the default): a member receives in the order of rounds. A message
///   moves when its sender has what it carries and its receiver has received everything of earlier
///   rounds. What the sender has to send to others does not matter.
/// - `kRounds` ("rounds"): a member goes one by one through the rounds in which it takes part. A
///   message moves when both its ends have finished all that they send and receive in earlier
///   rounds, and the members that they wait for (FlowStep::after) have finished those rounds, too.
enum class FlowOrder : std::uint8_t { kReceivers, kRounds };
std::string_view name_of(FlowOrder order);  ///< "receivers", "rounds"
std::optional<FlowOrder> flow_order_named(std::string_view name);

/// An all-reduce over the ranks of a stage as messages between them
/// (docs/reference/plan_format.md). The buffer is cut into members x sub_chunks parts that are as
/// equal as possible. Part c is summed on its owner, c / sub_chunks, along trees that lead there,
/// and spread from there. A message waits until rounds before its own have completed what it sends;
/// there are no barriers.
struct PlanFlow {
  std::string name;  ///< "f0", ...
  int stage = 0;
  int sub_chunks = 1;  ///< sub-chunks of each member's chunk
  FlowOrder order = FlowOrder::kReceivers;
  std::vector<FlowStep> steps;
  std::int64_t message_count() const;
  friend bool operator==(const PlanFlow& a, const PlanFlow& b) {
    return a.name == b.name && a.stage == b.stage && a.sub_chunks == b.sub_chunks &&
           a.order == b.order && a.steps == b.steps;
  }
};

/// Returns the round of each step, from 0. A step is a round of its own, with one exception: an
/// all-gather step joins the round of the reduce-scatter step before it if it sends nothing that
/// arrived in that step and has no waits.
std::vector<int> rounds_of(const PlanFlow& flow);

/// Proves that a flow among `members` members leaves each of them with the sum of all in every
/// chunk, each value counted once: every member but the owner sends each sub-chunk once in the
/// reduce-scatter, after it has received all that others send it of that sub-chunk; and it gets the
/// sub-chunk once in the all-gather, from a member that has it. Proves also that no member waits
/// forever: every wait is for rounds that end before it in any order. The flow needs neither a name
/// nor a stage. Errors (kInvalidInput) name the step. Cost: O(members^2 x sub_chunks).
Status verify_flow(const PlanFlow& flow, int members);

}  // namespace agpcs
