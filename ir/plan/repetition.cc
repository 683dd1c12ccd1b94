// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/repetition.h"

#include <algorithm>
#include <map>
#include <utility>

namespace agpcs {
namespace {

InstructionId next(InstructionId id) {
  if (id.micro_batch >= 0) ++id.micro_batch;
  return id;
}

/// Returns whether `b` is `a` for the next micro-batch.
bool follows(const Instruction& a, const Instruction& b) {
  return b.id == next(a.id) &&
         std::equal(a.after.begin(), a.after.end(), b.after.begin(), b.after.end(),
                    [](const InstructionId& x, const InstructionId& y) { return y == next(x); });
}

/// Returns for each instruction how far behind it the same one for the next micro-batch is; 0:
/// none.
std::vector<std::size_t> distances(const std::vector<Instruction>& instructions) {
  std::vector<std::size_t> found(instructions.size(), 0);
  std::map<std::pair<Opcode, int>, std::size_t> later;
  for (std::size_t i = instructions.size(); i-- > 0;) {
    const InstructionId& id = instructions[i].id;
    if (id.micro_batch < 0) continue;
    const auto [it, is_new] = later.try_emplace({id.opcode, id.object}, i);
    if (!is_new && follows(instructions[i], instructions[it->second])) found[i] = it->second - i;
    it->second = i;
  }
  return found;
}

}  // namespace

std::vector<Repetition> repetitions_of(const Program& program) {
  const std::vector<Instruction>& instructions = program.instructions;
  const std::vector<std::size_t> distance = distances(instructions);
  std::vector<Repetition> pieces;
  for (std::size_t i = 0; i < instructions.size();) {
    const std::size_t size = distance[i];
    std::size_t end = i;
    while (size > 0 && end < instructions.size() && distance[end] == size) ++end;
    const std::size_t times = size > 0 ? (end - i) / size + 1 : 1;
    if (times >= kLeastRepetitions) {
      int first = instructions[i].id.micro_batch;
      for (std::size_t j = i; j < i + size; ++j) {
        first = std::min(first, instructions[j].id.micro_batch);
      }
      pieces.push_back({i, size, times, first});
      i += size * times;
      continue;
    }
    if (pieces.empty() || pieces.back().times > 1) pieces.push_back({i, 0, 1, 0});
    ++pieces.back().size;
    ++i;
  }
  return pieces;
}

}  // namespace agpcs
