// SPDX-License-Identifier: Apache-2.0
// What timing costs a step: the clock is read when an instruction begins and ends, of a computation
// also the thread's processor time, they are stored, and statistics are taken from them, with the
// kernel's counters. The figure is that of all this for one instruction,
// alone in a loop, times the instructions of a step.
//
//     build/release/tests/timing_overhead
#include "runtime/job/drift/expectation.h"
#include "runtime/support/operation_times.h"
#include "runtime/support/processor_time.h"
#include "tests/runtime/plans.h"

#include <agpcs/drift.h>
#include <agpcs/step_times.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace agpcs {
namespace {

struct Cost {
  double nanoseconds = 0;  ///< of a step
  std::size_t instructions = 0;
};

/// Processor time, in the best of several rounds: what it costs, not what else the machine does.
Cost cost_of(const Plan& plan) {
  const std::size_t instructions = plan.programs[0].instructions.size();
  StepTimes times(instructions, 64);
  StepStatistics statistics(plan, 0);
  HeldTime held;
  std::vector<char> computes;
  for (const Instruction& instruction : plan.programs[0].instructions) {
    computes.push_back(quantity_of(plan, instruction.id) == static_cast<int>(Quantity::kCompute));
  }
  double kept = 0;  // so that nothing is left out
  constexpr std::int64_t kSteps = 2000;
  double best = 1e18;
  for (int round = 0; round < 9; ++round) {
    const std::int64_t begin = thread_processor_nanoseconds();
    for (std::int64_t step = 0; step < kSteps; ++step) {
      InstructionTime* row = times.row(step);
      for (std::size_t i = 0; i < instructions; ++i) {
        row[i].begin = steady_nanoseconds();
        row[i].end = steady_nanoseconds();
        row[i].processor = computes[i] ? thread_processor_nanoseconds() : 0;
      }
      statistics.add(row);
      if (step % 5 == 4) kept += statistics.take(held.take()).ratios[0];
    }
    const auto spent = static_cast<double>(thread_processor_nanoseconds() - begin);
    best = std::min(best, spent / static_cast<double>(kSteps));
  }
  if (kept == 1) fmt::print("\n");
  return {best, instructions};
}

int run() {
  fmt::print("{:<34}{:>13}{:>15}{:>16}{:>16}\n", "a rank's program", "instructions", "ns each",
             "of a 1 ms step", "of a 20 ms step");
  for (const int micro_batches : {1, 8, 64}) {
    const Plan plan = make_plan({{{1, 1}, {2}}, {{0, 1, {"a"}}}, micro_batches});
    const Cost cost = cost_of(plan);
    fmt::print("{:<34}{:>13}{:>15.0f}{:>15.3f}%{:>15.4f}%\n",
               fmt::format("2 stages, {} micro-batches", micro_batches), cost.instructions,
               cost.nanoseconds / static_cast<double>(cost.instructions), cost.nanoseconds / 1e4,
               cost.nanoseconds / 2e5);
  }
  return 0;
}

}  // namespace
}  // namespace agpcs

int main() { return agpcs::run(); }
