// SPDX-License-Identifier: Apache-2.0
// Memory over the compute instructions of one program, counted in what one micro-batch holds.
#pragma once

#include "ir/strategy/memory.h"
#include "ir/strategy/stage_memory.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

namespace agpcs {

/// The memory states of one program, as far as one stage is concerned. The buffer of a transfer
/// counts from the first compute instruction during which the transfer may run to the last one
/// before which it has surely ended.
class ProgramMemory {
 public:
  /// Of a program of one stage. Cost: O(instructions + micro-batches x those in flight).
  explicit ProgramMemory(const Program& program);
  /// Of stage `stage` of `plan`, one of several of `program`. Cost: likewise, and O(micro-batches x
  /// its local cuts).
  ProgramMemory(const Plan& plan, const Program& program, int stage);
  /// Returns that of stage `stage` of `plan`, which `program` executes, whether alone or with
  /// others.
  static ProgramMemory of_stage(const Plan& plan, const Program& program, int stage);

  /// Returns the peak for a replica; of several equal peaks, the first. Cost: O(compute
  /// instructions).
  MemoryUse peak(const StageMemory& m) const;
  /// Returns `peak(m).total()`. Cost: O(different states of memory), which are few.
  std::int64_t peak_bytes(const StageMemory& m) const;
  /// Returns the most bytes that the replica has in its host's memory. Cost: likewise.
  std::int64_t host_bytes(const StageMemory& m) const;
  std::vector<MemoryStep> steps(const StageMemory& m) const;
  /// The same of a rank that has several stages: `stages` are those of its program, with what each
  /// holds.
  struct Stage {
    const ProgramMemory* program = nullptr;
    StageMemory memory;
  };
  static MemoryUse peak_of(const std::vector<Stage>& stages);
  static std::vector<MemoryStep> steps_of(const std::vector<Stage>& stages);

 private:
  /// The contents of memory while one compute instruction runs, as numbers of micro-batches.
  struct Slot {
    InstructionId id;
    bool own = true;  // it is of the stage
    int others = 0;   // micro-batches between their passes, without this instruction's own
    int put_off = 0;  // those between the two parts of their backward passes, likewise
    int received = 0, sent = 0, gradients_received = 0, gradients_sent = 0;
    int gradients_kept = 0;
  };
  using Counter = int Slot::*;
  /// A send, and its place among those of the program, counted from 1.
  struct Sent {
    Opcode opcode;
    int object, micro_batch;
    std::size_t place;
    bool operator<(const Sent& other) const {
      return std::tie(opcode, object, micro_batch) <
             std::tie(other.opcode, other.object, other.micro_batch);
    }
  };

  /// Returns whether an instruction is of the stage.
  using IsOfStage = std::function<bool(const InstructionId&)>;

  void find_all(const Program& program);
  static bool is_pass(const Slot& slot);
  static std::int64_t host_during(const Slot& slot, const StageMemory& m);
  static MemoryUse use_during(const Slot& slot, const StageMemory& m);
  static MemoryUse use_after(const Slot& slot, const StageMemory& m);
  bool is_own(const InstructionId& id) const { return !is_of_stage_ || is_of_stage_(id); }
  int size() const { return static_cast<int>(slots_.size()); }
  void occupy(Counter counter, int first, int end);
  void find_positions(const Program& program);
  int earliest(const std::vector<InstructionId>& after) const;
  void find_receives(const Program& program);
  static std::size_t left_before(const Instruction& instruction, const std::vector<Sent>& sends,
                                 std::size_t posted);
  void find_sends(const Program& program);
  void find_kept_gradients(const Plan& plan, int stage);
  void find_states();

  IsOfStage is_of_stage_;
  std::vector<Slot> slots_;
  std::vector<Slot> states_;  // slots that differ in more than their micro-batch
  // Slot by micro-batch, or kNone; of parted backwards, the first, and then the second.
  std::vector<int> forward_, backward_, weight_;
  // Slot by pass, where several stages have some.
  std::map<std::tuple<Opcode, int, int>, int> place_;
};

}  // namespace agpcs
