// SPDX-License-Identifier: Apache-2.0
// StepState: where every rank stands in its program, and who waits for whom at which meeting.
#pragma once

#include "cost_model/step_model.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// A transfer of one micro-batch, which needs both ends, or a collective, which needs all members.
struct Meeting {
  int object = 0;  ///< a channel; then, counted on, a bucket's all-reduce; last the report
  int micro_batch = 0;
};

struct RankState {
  bool computing = false;
  int moving = 0;    ///< transfers and collectives of this rank that run
  double since = 0;  ///< of these two
  std::array<int, kStreamKindCount> running = {-1, -1, -1, -1};  ///< instruction; -1: none
  std::array<int, kStreamKindCount> pending = {};                ///< its meetings that did not end
  std::array<double, kStreamKindCount> start = {};
  std::vector<int> waits;  ///< by instruction
  std::vector<char> done;  ///< by instruction
};

class StepState {
 public:
  StepState(const Plan& plan, const StepModel& model);

  RankState& rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const std::vector<StepInstruction>& program_of(int rank) const;

  /// One wait less; true when it was the last.
  bool satisfy(int rank, int index);
  /// Puts an instruction at the head of its stream; false: it has nothing to wait for.
  bool begin(int rank, int index, double now);
  /// Takes it off, and returns when it started.
  double finish(int rank, int index);

  /// Calls `f(meeting)` for each meeting of a transfer or collective.
  template <typename F>
  void for_each_meeting(int rank, const StepInstruction& instruction, F f) const {
    if (instruction.stream == StreamKind::kCollective) {
      f(Meeting{collective_object(instruction.id), 0});
      return;
    }
    for (const int channel : model_.channels_of(rank, instruction.id)) {
      f(Meeting{channel, instruction.id.micro_batch});
    }
  }

  /// Calls `f(rank, stream)` for everyone who takes part.
  template <typename F>
  void for_each_participant(const Meeting& meeting, F f) const {
    if (is_channel(meeting)) {
      const Channel& channel = model_.channels[static_cast<std::size_t>(meeting.object)];
      f(channel.from, StreamKind::kSend);
      f(channel.to, StreamKind::kRecv);
      return;
    }
    for (const int member : members(meeting)) f(member, StreamKind::kCollective);
  }

  /// One participant is there; true when it was the last.
  bool arrive(const Meeting& meeting);
  const Exchange& exchange_of(const Meeting& meeting) const;
  void start_moving(int rank, StreamKind stream, double now);
  /// A meeting of what runs on `stream` has ended; true when it was its last.
  bool stop_moving(int rank, StreamKind stream);

  /// Error that names the instructions that wait, and for whom; ok when all are done.
  Status check_finished() const;

 private:
  bool is_channel(const Meeting& meeting) const { return meeting.object < channel_count(); }
  int channel_count() const { return static_cast<int>(model_.channels.size()); }
  int collective_object(InstructionId id) const;
  const std::vector<int>& members(const Meeting& meeting) const;
  std::size_t arrivals_index(const Meeting& meeting) const;
  std::string describe_wait(int rank, int index) const;
  std::string missing_ranks(int rank, const StepInstruction& instruction) const;

  const Plan& plan_;
  const StepModel& model_;
  std::vector<RankState> ranks_;
  std::vector<int> arrivals_;  // channels by micro-batch, then collectives
  std::vector<int> all_ranks_;
};

}  // namespace agpcs
