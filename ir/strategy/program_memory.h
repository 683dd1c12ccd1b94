// SPDX-License-Identifier: Apache-2.0
// Memory over the compute instructions of one program, in units of what a micro-batch holds.
#pragma once

#include "ir/memory.h"
#include "ir/stage_memory.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace agpcs {

/// A transfer's buffer counts from the first compute instruction during which it may run to the
/// last one before which it has surely ended.
class ProgramMemory {
 public:
  /// Cost: O(instructions + micro-batches x those in flight).
  explicit ProgramMemory(const Program& program);

  /// The peak for a replica; the first one when there are several. Cost: O(compute instructions).
  MemoryUse peak(const StageMemory& m) const;
  /// `peak(m).total()`. Cost: O(different states of memory), which are few.
  std::int64_t peak_bytes(const StageMemory& m) const;
  std::vector<MemoryStep> steps(const StageMemory& m) const;

 private:
  /// What is there while one compute instruction runs: numbers of micro-batches.
  struct Slot {
    InstructionId id;
    int others = 0;  // between their passes, this instruction's own one not counted
    int received = 0, sent = 0, gradients_received = 0, gradients_sent = 0;
  };
  using Counter = int Slot::*;
  using Places = std::map<std::tuple<Opcode, int, int>, std::size_t>;

  static MemoryUse use_during(const Slot& slot, const StageMemory& m);
  int size() const { return static_cast<int>(slots_.size()); }
  void occupy(Counter counter, int first, int end);
  void find_positions(const Program& program);
  int earliest(const std::vector<InstructionId>& after) const;
  void find_receives(const Program& program);
  static std::size_t left_before(const Instruction& instruction, const Places& places);
  void find_sends(const Program& program);
  void find_states();

  std::vector<Slot> slots_;
  std::vector<Slot> states_;               // slots that differ in more than their micro-batch
  std::map<int, int> forward_, backward_;  // slot by micro-batch
};

}  // namespace agpcs
