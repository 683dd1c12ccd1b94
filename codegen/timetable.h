// SPDX-License-Identifier: Apache-2.0
// Timetable: when each stage would compute each micro-batch if every pass took one unit of time and
// messages took no time. All programs order their transfers by it, so that they agree.
#pragma once

#include <agpcs/plan.h>

#include <cstdint>
#include <vector>

namespace agpcs {

class Timetable {
 public:
  /// Needs: `plan` has stages, cuts and number of micro-batches; `in_flight`, by stage, are numbers
  /// that `verify_strategy` accepts, all micro-batches with GPipe. Cost: O(stages x micro-batches x
  /// cuts of a stage).
  ///
  /// Where schedules interleave, ranks go through their stages in rounds of micro-batches
  /// (`rounds_of_micro_batches`): the forward passes of a round in the first stage, in the second,
  /// and so on, and backward passes from the last stage to the first. The ranks of program p of P
  /// begin with 2 (P - p - 1) + (V - 1) G forward passes, of V stages and G micro-batches in the
  /// first round, and then take backward and forward passes in turns (Narayanan et al., SC 2021,
  /// whose rounds are all of P).
  Timetable(const Plan& plan, const std::vector<std::int64_t>& in_flight);

  /// Returns the passes of a program (`Plan::program_of`) in its order.
  const std::vector<InstructionId>& order(int program) const {
    return orders_[static_cast<std::size_t>(program)];
  }
  /// Returns when each order(program)[index] ends; ends ascend and are at least 1.
  const std::vector<int>& ends(int program) const {
    return ends_[static_cast<std::size_t>(program)];
  }
  /// Returns when a forward pass of a micro-batch ends in a stage, or the pass that makes the
  /// gradients that go back.
  int end_of(int stage, Opcode pass, int micro_batch) const;

 private:
  bool advance(int program);
  int earliest_start(int stage, const InstructionId& id) const;

  int micro_batches_;
  std::vector<std::vector<int>> earlier_;           // by stage: the stages whose tensors it reads
  std::vector<std::vector<int>> later_;             // by stage: the stages whose gradients it reads
  std::vector<std::vector<InstructionId>> orders_;  // by program
  std::vector<std::vector<int>> ends_;
  std::vector<int> passes_;  // [(stage x 2 + goes back) x micro-batches + micro-batch]: end, or 0
};

}  // namespace agpcs
