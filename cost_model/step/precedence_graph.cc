// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/precedence_graph.h"

#include "ir/base/at.h"
#include "ir/graph/graph.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

/// An instruction of a program waits for another one, by their indices.
struct Wait {
  int before = 0, instruction = 0;
  int bucket = kNone;  // it waits for this bucket's gradients alone, which `before` completes
  bool needs = false;  // it is a gather that waits for what `before` needs
};

/// Finds instructions of a program by their id.
class InstructionIndex {
 public:
  explicit InstructionIndex(const Program& program) {
    for (const Instruction& instruction : program.instructions) {
      micro_batches_ = std::max(micro_batches_, instruction.id.micro_batch + 1);
      objects_ = std::max(objects_, instruction.id.object + 2);
    }
    lanes_.resize(static_cast<std::size_t>(Opcode::kGradients) * at(objects_), kNone);
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const InstructionId& id = program.instructions[i].id;
      int& lane = lanes_[lane_of(id)];
      if (lane == kNone) {
        lane = static_cast<int>(places_.size());
        places_.resize(places_.size() + at(id.micro_batch < 0 ? 1 : micro_batches_), kNone);
      }
      places_[at(lane + std::max(id.micro_batch, 0))] = static_cast<int>(i);
    }
  }
  /// Returns the index of the instruction, or kNone if the program lacks it.
  int find(const InstructionId& id) const {
    if (id.object + 1 >= objects_ || id.micro_batch >= micro_batches_) return kNone;
    const int lane = lanes_[lane_of(id)];
    return lane == kNone ? kNone : places_[at(lane + std::max(id.micro_batch, 0))];
  }

 private:
  std::size_t lane_of(const InstructionId& id) const {
    return static_cast<std::size_t>(id.opcode) * at(objects_) + at(id.object + 1);
  }

  int micro_batches_ = 0, objects_ = 0;
  std::vector<int> lanes_;   // by opcode and object: where its micro-batches begin in `places_`
  std::vector<int> places_;  // indices of instructions
};

/// Returns all waits: those of streams, then those of `after`, each by `instruction`.
Result<std::vector<Wait>> waits_of(const Plan& plan, const Program& program) {
  const std::vector<Instruction>& instructions = program.instructions;
  std::vector<Wait> waits;
  waits.reserve(3 * instructions.size());
  std::array<int, kStreamKindCount> last = {kNone, kNone, kNone, kNone};
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    int& before = last[static_cast<std::size_t>(stream_of(instructions[i].id.opcode))];
    if (before != kNone) waits.push_back({before, static_cast<int>(i)});
    before = static_cast<int>(i);
  }
  const InstructionIndex index_of(program);
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    for (const InstructionId& id : instructions[i].after) {
      const bool gradients = id.opcode == Opcode::kGradients;
      const int before =
          index_of.find(gradients ? gradients_pass(plan, program.stage, id.object, id.micro_batch)
                        : is_event(id.opcode) ? pass_of(id)
                                              : id);
      if (before == kNone) {
        return internal_error(
            fmt::format("the plan cannot finish: {} waits for {}, which its program lacks",
                        name_of(instructions[i].id), name_of(id)));
      }
      waits.push_back({before, static_cast<int>(i), gradients ? id.object : kNone,
                       is_event(id.opcode) && !gradients});
    }
  }
  return waits;
}

/// Counts, for each instruction, the waits for it that `is_counted`; returns where its own begin.
template <typename F>
std::vector<int> begins_of(const std::vector<Wait>& waits, std::size_t instructions, F is_counted) {
  std::vector<int> begins(instructions + 1);
  for (const Wait& wait : waits) begins[at(wait.before) + 1] += is_counted(wait) ? 1 : 0;
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  return begins;
}

/// Adds where passes need what gathers bring. Gathers are in the order of passes.
Status add_uses(const Program& program, PrecedenceGraph& graph) {
  const bool some = std::any_of(program.instructions.begin(), program.instructions.end(),
                                [](const auto& one) { return gathers_for_pass(one.id.opcode); });
  if (!some) return {};
  const InstructionIndex index_of(program);
  int last = kNone;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const InstructionId& id = program.instructions[i].id;
    if (!gathers_for_pass(id.opcode)) continue;
    const auto gather = static_cast<int>(i);
    const int pass = index_of.find(pass_of(id));
    if (pass == kNone) {
      return internal_error(
          fmt::format("the plan cannot finish: {} serves {}, which its program "
                      "lacks",
                      name_of(id), name_of(pass_of(id))));
    }
    PrecedenceGraph::Instruction& reader = graph.instructions[at(pass)];
    if (reader.use == reader.use_end) reader.use = static_cast<int>(graph.uses.size());
    graph.uses.push_back({id.object, gather});
    reader.use_end = static_cast<int>(graph.uses.size());
    reader.waits_within = true;
    graph.instructions[i].gathers = true;
    if (last != kNone) graph.instructions[at(last)].lets_begin = gather;
    last = gather;
  }
  return {};
}

}  // namespace

Result<PrecedenceGraph> precedence_graph(const Plan& plan, const Program& program) {
  AGPCS_TRY(const std::vector<Wait> waits, waits_of(plan, program));
  const std::size_t count = program.instructions.size();
  const auto is_next = [](const Wait& wait) { return wait.bucket == kNone && !wait.needs; };
  const auto is_release = [](const Wait& wait) { return wait.bucket != kNone; };
  std::vector<int> next = begins_of(waits, count, is_next);
  std::vector<int> release = begins_of(waits, count, is_release);
  PrecedenceGraph graph;
  graph.instructions.resize(count);
  int scatter = kNone;
  for (std::size_t i = 0; i < count; ++i) {
    const InstructionId& id = program.instructions[i].id;
    graph.instructions[i] = {id,          stream_of(id.opcode), next[i],
                             next[i + 1], release[i],           release[i + 1]};
    if (!sums_one_micro_batch(id)) continue;
    graph.instructions[i].scatter_before = std::exchange(scatter, static_cast<int>(i));
  }
  graph.next.resize(at(next.back()));
  graph.releases.resize(at(release.back()));
  graph.waits.resize(count);
  for (const Wait& wait : waits) {
    ++graph.waits[at(wait.instruction)];
    if (wait.needs) {
      continue;  // see `add_uses`
    } else if (is_next(wait)) {
      graph.next[at(next[at(wait.before)]++)] = wait.instruction;
    } else {
      graph.releases[at(release[at(wait.before)]++)] = {wait.bucket, wait.instruction};
      const InstructionId& released = program.instructions[at(wait.instruction)].id;
      if (sums_one_micro_batch(released)) graph.instructions[at(wait.before)].waits_within = true;
    }
  }
  AGPCS_RETURN_IF_ERROR(add_uses(program, graph));
  for (std::size_t i = 0; i < count; ++i) {
    if (graph.waits[i] == 0) graph.starts.push_back(static_cast<int>(i));
  }
  return graph;
}

}  // namespace agpcs
