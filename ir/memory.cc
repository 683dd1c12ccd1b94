// SPDX-License-Identifier: Apache-2.0
#include "ir/memory.h"

#include "ir/stage_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

/// `PlanStage::operators` as OpIds.
class OperatorResolver {
 public:
  explicit OperatorResolver(const Graph& graph)
      : graph_(graph), stage_of_(graph.ops.size(), kNone) {
    for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) ids_[graph.op(op).name] = op;
  }

  Result<std::vector<std::vector<OpId>>> run(const Plan& plan) {
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      stages_.emplace_back();
      for (const PlanStage::Run& run : plan.stages[i].operators) {
        AGPCS_RETURN_IF_ERROR(add_run(static_cast<int>(i), run));
      }
      std::sort(stages_.back().begin(), stages_.back().end());
    }
    for (OpId op = 0; op < static_cast<OpId>(stage_of_.size()); ++op) {
      if (stage_of_[static_cast<std::size_t>(op)] == kNone) {
        return fail("operator '{}' is in no stage", graph_.op(op).name);
      }
    }
    return std::move(stages_);
  }

 private:
  template <typename... Args>
  static Status fail(fmt::format_string<Args...> format, Args&&... args) {
    return invalid_input("plan: error: " + fmt::format(format, std::forward<Args>(args)...));
  }

  Status add_run(int stage, const PlanStage::Run& run) {
    const auto first = ids_.find(run.first), last = ids_.find(run.last);
    if (first == ids_.end() || last == ids_.end()) {
      return fail("stage s{}: the model has no operator '{}'", stage,
                  first == ids_.end() ? run.first : run.last);
    }
    if (last->second - first->second + 1 != run.count) {
      return fail("stage s{}: the model has {} operators from '{}' to '{}', the plan has {}", stage,
                  last->second - first->second + 1, run.first, run.last, run.count);
    }
    for (OpId op = first->second; op <= last->second; ++op) {
      int& owner = stage_of_[static_cast<std::size_t>(op)];
      if (owner != kNone) {
        return fail("operator '{}' is in stage s{} and in stage s{}", graph_.op(op).name, owner,
                    stage);
      }
      owner = stage;
      stages_.back().push_back(op);
    }
    return {};
  }

  const Graph& graph_;
  std::unordered_map<std::string_view, OpId> ids_;
  std::vector<int> stage_of_;
  std::vector<std::vector<OpId>> stages_;
};

/// Memory over the compute instructions of one program, in units of what a micro-batch holds.
/// A transfer's buffer counts from the first compute instruction during which it may run to the
/// last one before which it has surely ended.
class ProgramMemory {
 public:
  explicit ProgramMemory(const Program& program) {
    find_positions(program);
    find_receives(program);
    find_sends(program);
  }

  /// The peak for a replica; the first one when there are several.
  MemoryUse peak(const StageMemory& m) const {
    MemoryUse most;
    for (const Slot& slot : slots_) {
      const MemoryUse use = use_during(slot, m);
      if (use.total() > most.total()) most = use;
    }
    return most;
  }

  std::vector<MemoryStep> steps(const StageMemory& m) const {
    std::vector<MemoryStep> steps;
    for (const Slot& slot : slots_) {
      MemoryUse use = use_during(slot, m);
      const std::int64_t during = use.total();
      use.workspace = 0;
      if (slot.id.opcode == Opcode::kForward) use.transfers -= m.received_and_free;
      if (slot.id.opcode == Opcode::kBackward) use.activations -= m.in_flight;
      steps.push_back({slot.id, during, use.total()});
    }
    return steps;
  }

 private:
  /// What is there while one compute instruction runs: numbers of micro-batches.
  struct Slot {
    InstructionId id;
    int others = 0;  ///< between their passes, this instruction's own one not counted
    int received = 0, sent = 0, gradients_received = 0, gradients_sent = 0;
  };
  using Counter = int Slot::*;

  static MemoryUse use_during(const Slot& slot, const StageMemory& m) {
    const bool forward = slot.id.opcode == Opcode::kForward;
    const bool pass = forward || slot.id.opcode == Opcode::kBackward;
    MemoryUse use;
    use.parameters = m.parameters;
    use.gradients = m.gradients;
    use.optimizer = m.optimizer;
    use.activations = m.inputs + m.in_flight * (slot.others + (pass ? 1 : 0));
    use.transfers = m.received * slot.received + m.sent * slot.sent +
                    m.gradients_received * slot.gradients_received +
                    m.gradients_sent * slot.gradients_sent;
    if (forward) use.transfers += m.received_and_free;
    if (pass) use.workspace = (forward ? m.forward_peak : m.backward_peak) - m.in_flight;
    return use;
  }

  /// Adds one to `counter` of the slots [first, end).
  void occupy(Counter counter, int first, int end) {
    for (int i = std::max(first, 0); i < std::min(end, size()); ++i) {
      ++(slots_[static_cast<std::size_t>(i)].*counter);
    }
  }
  int size() const { return static_cast<int>(slots_.size()); }

  void find_positions(const Program& program) {
    for (const Instruction& instruction : program.instructions) {
      const InstructionId& id = instruction.id;
      if (stream_of(id.opcode) != StreamKind::kCompute) continue;
      if (id.opcode == Opcode::kForward) forward_[id.micro_batch] = size();
      if (id.opcode == Opcode::kBackward) backward_[id.micro_batch] = size();
      slots_.push_back({id});
    }
    for (const auto& [micro_batch, at] : forward_) {
      occupy(&Slot::others, at + 1, backward_.at(micro_batch));
    }
  }

  /// The slot before which `id` has surely not started, as far as compute instructions say.
  int earliest(const std::vector<InstructionId>& after) const {
    int slot = 0;
    for (const InstructionId& id : after) {
      if (id.opcode == Opcode::kForward) slot = std::max(slot, forward_.at(id.micro_batch) + 1);
      if (id.opcode == Opcode::kBackward) slot = std::max(slot, backward_.at(id.micro_batch) + 1);
    }
    return slot;
  }

  /// Cuts of one micro-batch are received together: the micro-batch counts from its first receive.
  void find_receives(const Program& program) {
    std::map<std::pair<Opcode, int>, int> first;
    int slot = 0;
    for (const Instruction& instruction : program.instructions) {
      const InstructionId& id = instruction.id;
      if (stream_of(id.opcode) != StreamKind::kRecv) continue;
      slot = std::max(slot, earliest(instruction.after));  // the stream is in order
      first.emplace(std::pair(id.opcode, id.micro_batch), slot);
    }
    for (const auto& [key, at] : first) {
      if (key.first == Opcode::kRecv) {  // its forward pass takes them over
        occupy(&Slot::received, at, forward_.at(key.second));
      } else {
        occupy(&Slot::gradients_received, at, backward_.at(key.second) + 1);
      }
    }
  }

  using Places = std::map<std::tuple<Opcode, int, int>, std::size_t>;

  /// How many sends have surely left when `instruction` starts: it waits for a send, or for the
  /// gradient that comes back for it.
  static std::size_t left_before(const Instruction& instruction, const Places& places) {
    std::size_t left = 0;
    for (const InstructionId& id : instruction.after) {
      const Opcode opcode = id.opcode == Opcode::kRecvGradient ? Opcode::kSend : id.opcode;
      const auto it = places.find({opcode, id.object, id.micro_batch});
      if (it != places.end()) left = std::max(left, it->second);
    }
    return left;
  }

  void find_sends(const Program& program) {
    Places places;
    std::map<std::pair<Opcode, int>, std::size_t> last;  // send of a micro-batch
    std::vector<std::size_t> left;                       // by slot
    std::size_t count = 0, so_far = 0;
    for (const Instruction& instruction : program.instructions) {
      const InstructionId& id = instruction.id;
      if (stream_of(id.opcode) == StreamKind::kSend) {
        ++count;  // the stream is in order
        places[{id.opcode, id.object, id.micro_batch}] = last[{id.opcode, id.micro_batch}] = count;
      } else if (stream_of(id.opcode) == StreamKind::kCompute) {
        so_far = std::max(so_far, left_before(instruction, places));
        left.push_back(so_far);
      }
    }
    for (const auto& [key, place] : last) {
      const auto end = std::lower_bound(left.begin(), left.end(), place) - left.begin();
      const Counter counter = key.first == Opcode::kSend ? &Slot::sent : &Slot::gradients_sent;
      // Until its backward pass is over, `in_flight` or the pass's own peak has it.
      occupy(counter, backward_.at(key.second) + 1, static_cast<int>(end));
    }
  }

  std::vector<Slot> slots_;
  std::map<int, int> forward_, backward_;  // slot by micro-batch
};

}  // namespace

Result<std::vector<std::vector<OpId>>> resolve_stages(const Plan& plan, const Graph& graph) {
  const std::string digest = digest_of(print_graph(graph));
  if (digest != plan.model_digest) {
    return invalid_input(fmt::format(
        "plan: error: the plan is for model '{}' ({}), this model is '{}' ({})\n"
        "  hint: give the model that the plan was made for, with the same --dim, or compile again",
        plan.model, plan.model_digest, graph.name, digest));
  }
  return operators_of_stages(plan, graph);
}

Result<std::vector<std::vector<OpId>>> operators_of_stages(const Plan& plan, const Graph& graph) {
  return OperatorResolver(graph).run(plan);
}

namespace {

/// `of(program, stage memory)` of each rank; of equal replicas once.
template <typename T, typename Of>
Result<std::vector<T>> of_ranks(const Plan& plan, const Graph& graph, Of of) {
  AGPCS_TRY(const auto stages, operators_of_stages(plan, graph));
  std::vector<T> ranks(static_cast<std::size_t>(plan.rank_count()));
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    const ProgramMemory program(plan.programs[s]);
    std::map<std::int64_t, T> by_samples;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      const std::int64_t samples = stage.samples[i];
      auto it = by_samples.find(samples);
      if (it == by_samples.end()) {
        const StageMemory memory =
            stage_memory(plan, graph, static_cast<int>(s), stages[s], samples);
        it = by_samples.emplace(samples, of(program, memory)).first;
      }
      ranks[static_cast<std::size_t>(stage.ranks[i])] = it->second;
    }
  }
  return ranks;
}

}  // namespace

Result<std::vector<MemoryUse>> peak_memory(const Plan& plan, const Graph& graph) {
  return of_ranks<MemoryUse>(
      plan, graph, [](const ProgramMemory& p, const StageMemory& m) { return p.peak(m); });
}

Result<std::vector<std::vector<MemoryStep>>> memory_over_step(const Plan& plan,
                                                              const Graph& graph) {
  return of_ranks<std::vector<MemoryStep>>(
      plan, graph, [](const ProgramMemory& p, const StageMemory& m) { return p.steps(m); });
}

}  // namespace agpcs
