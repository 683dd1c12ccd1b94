// SPDX-License-Identifier: Apache-2.0
// StepWaits: what every instruction of a simulated step waited for, and until when.
#pragma once

#include "cost_model/step/model.h"
#include "cost_model/step/simulator.h"
#include "ir/base/at.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// Times that differ by less than this fraction of the step count as equal.
inline constexpr double kSame = 1e-9;

/// The reason why an instruction could not start earlier.
enum class WaitReason : std::uint8_t {
  kStart,      ///< nothing: the step began
  kStream,     ///< its predecessor in its stream
  kAfter,      ///< an instruction of its `after`
  kGradients,  ///< the last gradient of a bucket, during a backward pass
  kNeed,       ///< a pass that needed the parameters of a bucket, so that the next could come
  kPeer,       ///< the other end of a transfer
  kMember,     ///< the last member of a collective
};
std::string_view name_of(WaitReason reason);

/// An instruction on the same rank that an instruction waited for.
struct Wait {
  int event = -1;  ///< the instruction waited for; -1: it waited for nothing
  WaitReason reason = WaitReason::kStart;
  double time = 0;  ///< when the wait was over, seconds
};

/// A time during which a pass waited for the sum of gradients that it had made before, or for
/// parameters.
struct Pause {
  int event = -1;  ///< the sum or gather
  double since = 0, until = 0;
};

/// A transfer between two ranks or a collective.
struct WaitMeeting {
  std::vector<int> events;  ///< the events that take part
  double start = 0;         ///< when the last of them was ready
  double end = 0;  ///< for one of several transfers of an instruction: the latest possible end
};

/// The waits of a simulated step. An "event" is an instruction on a rank; events are numbered by
/// rank, then by place in the program. The waits are derived from the plan's programs and the
/// timeline's times alone, so they hold for any simulator that follows the execution model of
/// agpcs/plan.h.
class StepWaits {
 public:
  /// Needs: the estimate of `plan` with its timeline, and the plan's model; all three outlive this
  /// object. Cost: O(instructions x ranks of their program).
  StepWaits(const Plan& plan, const StepModel& model, const Estimate& estimate);

  int event_count() const { return static_cast<int>(events_.size()); }
  const TimelineEvent& event(int event) const { return *events_[at(event)]; }
  /// Returns the event of an instruction of `rank`.
  int find(int rank, InstructionId id) const;
  int rank_begin(int rank) const { return first_of_rank_[at(rank)]; }
  int rank_end(int rank) const { return first_of_rank_[at(rank) + 1]; }

  /// Calls `f(Wait)` for everything on its own rank that `event` waited for.
  template <typename F>
  void for_each_wait(int event, F f) const {
    const int rank = this->event(event).rank;
    const int first = rank_begin(rank);
    for (const ProgramWait& wait : waits_of(rank, event - first)) {
      const int before = first + wait.instruction;
      const double time = wait.bucket >= 0 ? gradients_at(event, before, wait.bucket) : end(before);
      f(Wait{before, wait.reason, time});
    }
  }
  /// Returns the wait that was over last; ties (to a billionth of the step) go to the stream.
  Wait last_wait(int event) const;
  /// Returns the time from which nothing on its own rank held `event` back.
  double arrival(int event) const { return arrivals_[at(event)]; }

  /// Returns the times during which a backward pass waited, in order.
  const std::vector<Pause>& pauses(int pass) const { return pauses_[at(pass)]; }
  double paused_seconds(int pass) const;

  const std::vector<WaitMeeting>& meetings() const { return meetings_; }
  /// Returns the transfers or the collective of `event`, as indices into `meetings`.
  const std::vector<int>& meetings_of(int event) const { return meetings_of_[at(event)]; }

  /// Returns all events in an order in which each comes after what it waits for. A group is one
  /// instruction on all ranks of its program, together with the other ends of its transfers.
  std::vector<std::vector<int>> in_order() const;

 private:
  struct ProgramWait {
    int instruction = 0;
    WaitReason reason = WaitReason::kStream;
    int bucket = -1;
  };
  using Index = std::unordered_map<std::uint64_t, int>;

  double end(int event) const { return this->event(event).end; }
  const std::vector<ProgramWait>& waits_of(int rank, int instruction) const {
    return waits_[at(program_of(rank))][at(instruction)];
  }
  int program_of(int rank) const { return model_.ranks[at(rank)].program; }
  double gradients_at(int event, int backward, int bucket) const;
  double gradients_of(const RankTimes& times, int micro_batch, int bucket) const;
  double needs_of(const RankTimes& times, const InstructionId& gather) const;
  void find_pauses();
  void read_programs();
  void read_timeline(const Estimate& estimate);
  void add_transfers(int cut, Opcode send, Opcode recv);
  void add_transfers(int cut, Opcode send, Opcode recv, int first, int end);
  void add_collective(InstructionId id, const std::vector<int>& ranks);
  void add_meeting(std::vector<int> events);
  struct Node;
  std::vector<Node> nodes() const;

  const Plan& plan_;
  const StepModel& model_;
  double step_ = 0;
  std::vector<Index> index_;                                  // by program
  std::vector<std::vector<std::vector<ProgramWait>>> waits_;  // by program, instruction
  std::vector<int> first_of_rank_;                            // one entry more than ranks
  std::vector<const TimelineEvent*> events_;
  std::vector<double> arrivals_;
  std::vector<std::vector<Pause>> pauses_;  // by event
  // By event that begins within a pass: when the pass was there.
  std::unordered_map<int, double> reached_at_;
  std::vector<WaitMeeting> meetings_;
  std::vector<std::vector<int>> meetings_of_;
};

}  // namespace agpcs
