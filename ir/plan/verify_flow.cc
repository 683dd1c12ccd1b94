// SPDX-License-Identifier: Apache-2.0
// Checks that a plan's flow is an all-reduce.
#include "ir/base/at.h"
#include "ir/plan/flow.h"

#include <agpcs/plan.h>

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

namespace agpcs {
namespace {

/// Plays a flow step by step. What a step delivers counts from the next step on.
class FlowChecker {
 public:
  FlowChecker(const PlanFlow& flow, int members) : flow_(flow), members_(members) {}

  Status run() {
    if (members_ < 2) return fail("is among {} members, at least 2 are needed", members_);
    if (flow_.sub_chunks < 1 || flow_.sub_chunks > kMaxSubChunks) {
      return fail("has {} sub-chunks, not 1 to {}", flow_.sub_chunks, kMaxSubChunks);
    }
    // Checked before memory is allocated: far fewer messages than places are a mistake.
    const std::int64_t places = std::int64_t{members_} * members_ * flow_.sub_chunks;
    if (places > 4 * (flow_.message_count() + 1000)) {
      return fail("has {} messages; {} members with {} sub-chunks each need {}",
                  flow_.message_count(), members_, flow_.sub_chunks,
                  2 * (places - std::int64_t{members_} * flow_.sub_chunks));
    }
    places_.resize(static_cast<std::size_t>(places));
    AGPCS_RETURN_IF_ERROR(count_arrivals());
    for (step_ = 0; step_ < flow_.steps.size(); ++step_) {
      const FlowStep& step = flow_.steps[step_];
      for (const FlowMessage& message : step.messages) AGPCS_RETURN_IF_ERROR(leave(message));
      for (const FlowMessage& message : step.messages) AGPCS_RETURN_IF_ERROR(arrive(message));
    }
    return check_end();
  }

 private:
  /// The state of a sub-chunk at a member.
  struct Place {
    int awaited = 0;     // messages of the reduce-scatter that have not come yet
    bool sent = false;   // sent in the reduce-scatter
    bool whole = false;  // it holds the sum of all
  };

  Place& place(int member, int chunk) { return places_[at(chunk) * at(members_) + at(member)]; }
  int owner_of(int chunk) const { return chunk / flow_.sub_chunks; }

  template <typename... Args>
  Status fail(fmt::format_string<Args...> format, Args&&... args) const {
    return invalid_input(
        fmt::format("flow {} {}", flow_.name, fmt::format(format, std::forward<Args>(args)...)));
  }
  Status fail_at(const FlowMessage& m, std::string_view what) const {
    return fail("step {}: sub-chunk {} of member {}'s chunk from member {} to member {}: {}",
                step_ + 1, m.chunk % flow_.sub_chunks, owner_of(m.chunk), m.from, m.to, what);
  }

  static bool within(int value, int below) { return value >= 0 && value < below; }

  /// Checks waits. A member that others wait for signals before it begins the round, so all have
  /// the signal once all have finished the rounds before; hence waits cannot block.
  Status check_waits(const FlowStep& step) const {
    if (!step.after.empty() && flow_.order != FlowOrder::kRounds) {
      return fail("step {} has waits; its order is {}, only that of {} has them", step_ + 1,
                  name_of(flow_.order), name_of(FlowOrder::kRounds));
    }
    if (!step.after.empty() && step_ == 0) {
      return fail("step 1 has waits, and nothing is before it");
    }
    for (std::size_t i = 0; i < step.after.size(); ++i) {
      const FlowWait& wait = step.after[i];
      if (!within(wait.from, members_) || !within(wait.to, members_) || wait.from == wait.to) {
        return fail("step {}: member {} waits for member {} of {}", step_ + 1, wait.to, wait.from,
                    members_);
      }
      const auto key = [](const FlowWait& x) { return std::tie(x.from, x.to); };
      if (i > 0 && key(step.after[i - 1]) >= key(wait)) {
        return fail(
            "step {}: member {} waits for member {}: out of order: "
            "waits are sorted by who is waited for and who waits",
            step_ + 1, wait.to, wait.from);
      }
    }
    return {};
  }

  /// Checks the numbers of members and chunks and the order of messages, and counts how often
  /// something is added to each place.
  Status count_arrivals() {
    for (step_ = 0; step_ < flow_.steps.size(); ++step_) {
      const FlowStep& step = flow_.steps[step_];
      AGPCS_RETURN_IF_ERROR(check_waits(step));
      if (step.messages.empty()) return fail("step {} has no messages", step_ + 1);
      for (std::size_t i = 0; i < step.messages.size(); ++i) {
        const FlowMessage& m = step.messages[i];
        if (!within(m.from, members_) || !within(m.to, members_) || m.from == m.to ||
            !within(m.chunk, members_ * flow_.sub_chunks)) {
          return fail("step {}: chunk {} from member {} to member {} of {}", step_ + 1, m.chunk,
                      m.from, m.to, members_);
        }
        const auto key = [](const FlowMessage& x) { return std::tie(x.from, x.to, x.chunk); };
        if (i > 0 && key(step.messages[i - 1]) >= key(m)) {
          return fail_at(m, "out of order: messages are sorted by sender, receiver and chunk");
        }
        if (!step.gathers) ++place(m.to, m.chunk).awaited;
      }
    }
    return {};
  }

  Status leave(const FlowMessage& m) {
    Place& from = place(m.from, m.chunk);
    if (flow_.steps[step_].gathers) {
      if (m.from == owner_of(m.chunk) && from.awaited == 0) from.whole = true;
      if (!from.whole) return fail_at(m, "gathered before the sender has the sum");
      return {};
    }
    if (m.from == owner_of(m.chunk)) return fail_at(m, "reduced away from its owner");
    if (from.sent) return fail_at(m, "sent twice");
    if (from.awaited > 0) return fail_at(m, "sent before all that is added to it is there");
    from.sent = true;
    return {};
  }

  Status arrive(const FlowMessage& m) {
    Place& to = place(m.to, m.chunk);
    if (flow_.steps[step_].gathers) {
      if (to.whole || m.to == owner_of(m.chunk)) return fail_at(m, "received twice");
      to.whole = true;
      return {};
    }
    if (to.sent) return fail_at(m, "received after it was passed on");
    --to.awaited;
    return {};
  }

  /// Checks that each member but the owner has sent its part once. It did so after it had received
  /// everything, and to members that had not sent yet, so the messages form a tree that leads to
  /// the owner.
  Status check_end() {
    for (int chunk = 0; chunk < members_ * flow_.sub_chunks; ++chunk) {
      for (int member = 0; member < members_; ++member) {
        if (member == owner_of(chunk)) continue;
        const Place& p = place(member, chunk);
        if (p.sent && p.whole) continue;
        return fail("never {} sub-chunk {} of member {}'s chunk {} member {}",
                    p.sent ? "gathers" : "reduces", chunk % flow_.sub_chunks, owner_of(chunk),
                    p.sent ? "to" : "from", member);
      }
    }
    return {};
  }

  const PlanFlow& flow_;
  const int members_;
  std::size_t step_ = 0;
  std::vector<Place> places_;  // by chunk, then member
};

}  // namespace

Status verify_flow(const PlanFlow& flow, int members) { return FlowChecker(flow, members).run(); }

}  // namespace agpcs
