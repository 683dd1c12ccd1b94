// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/repetition.h"

#include "ir/plan/lookup.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace agpcs {
namespace {

InstructionId later_by(InstructionId id, int step) {
  if (id.micro_batch >= 0) id.micro_batch += step;
  return id;
}

/// Returns whether `b` is `a` for the micro-batch that is `step` later.
bool follows(const Instruction& a, const Instruction& b, int step) {
  return b.id == later_by(a.id, step) &&
         std::equal(a.after.begin(), a.after.end(), b.after.begin(), b.after.end(),
                    [step](const InstructionId& x, const InstructionId& y) {
                      return y == later_by(x, step);
                    });
}

/// Returns for each instruction how far behind it the same one for the micro-batch is that is
/// `step` later; 0: none.
std::vector<std::size_t> distances(const std::vector<Instruction>& instructions, int step) {
  std::vector<std::size_t> found(instructions.size(), 0);
  std::map<std::tuple<Opcode, int, int>, std::size_t> later;
  for (std::size_t i = instructions.size(); i-- > 0;) {
    const InstructionId& id = instructions[i].id;
    if (id.micro_batch < 0) continue;
    const auto it = later.find({id.opcode, id.object, id.micro_batch + step});
    if (it != later.end() && follows(instructions[i], instructions[it->second], step)) {
      found[i] = it->second - i;
    }
    later[{id.opcode, id.object, id.micro_batch}] = i;
  }
  return found;
}

/// Returns what is repeated from instruction `i` on, if it is often enough.
std::optional<Repetition> repetition_at(const std::vector<Instruction>& instructions, std::size_t i,
                                        const std::vector<std::size_t>& distance, int step) {
  const std::size_t size = distance[i];
  std::size_t end = i;
  while (size > 0 && end < instructions.size() && distance[end] == size) ++end;
  const std::size_t times = size > 0 ? (end - i) / size + 1 : 1;
  if (times < kLeastRepetitions) return {};
  int first = instructions[i].id.micro_batch;
  for (std::size_t j = i; j < i + size; ++j) {
    first = std::min(first, instructions[j].id.micro_batch);
  }
  return Repetition{i, size, times, first, step};
}

}  // namespace

std::vector<Repetition> repetitions_of(const Program& program, const std::vector<int>& steps) {
  const std::vector<Instruction>& instructions = program.instructions;
  std::vector<std::vector<std::size_t>> distance;
  for (const int step : steps) distance.push_back(distances(instructions, step));
  std::vector<Repetition> pieces;
  for (std::size_t i = 0; i < instructions.size();) {
    std::optional<Repetition> found;
    for (std::size_t s = 0; s < steps.size() && !found; ++s) {
      found = repetition_at(instructions, i, distance[s], steps[s]);
    }
    if (found) {
      pieces.push_back(*found);
      i += found->size * found->times;
      continue;
    }
    if (pieces.empty() || pieces.back().times > 1) pieces.push_back({i, 0, 1, 0});
    ++pieces.back().size;
    ++i;
  }
  return pieces;
}

std::vector<int> repetition_steps(const Plan& plan) {
  if (!plan.interleaves()) return {1};
  const std::vector<int> rounds =
      rounds_of_micro_batches(static_cast<int>(plan.micro_batches), plan.round_size());
  std::vector<int> steps = {rounds.front()};
  if (rounds.back() != rounds.front()) steps.push_back(rounds.back());
  return steps;
}

}  // namespace agpcs
