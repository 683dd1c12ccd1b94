// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/program_memory.h"

#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"

#include <algorithm>
#include <utility>

namespace agpcs {

ProgramMemory::ProgramMemory(const Program& program) {
  find_all(program);
  find_states();
}

ProgramMemory::ProgramMemory(const Plan& plan, const Program& program, int stage)
    : is_of_stage_([&plan, stage](const InstructionId& id) { return is_of(plan, id, stage); }) {
  find_all(program);
  find_kept_gradients(plan, stage);
  find_states();
  is_of_stage_ = nullptr;  // it refers to what may not live on
  place_.clear();
}

void ProgramMemory::find_all(const Program& program) {
  find_positions(program);
  find_receives(program);
  find_sends(program);
}

MemoryUse ProgramMemory::peak(const StageMemory& m) const {
  MemoryUse most;
  for (const Slot& slot : slots_) {
    const MemoryUse use = use_during(slot, m);
    if (use.total() > most.total()) most = use;
  }
  return most;
}

std::int64_t ProgramMemory::peak_bytes(const StageMemory& m) const {
  std::int64_t most = 0;
  for (const Slot& state : states_) most = std::max(most, use_during(state, m).total());
  return most;
}

std::vector<MemoryStep> ProgramMemory::steps(const StageMemory& m) const {
  std::vector<MemoryStep> steps;
  for (const Slot& slot : slots_) {
    steps.push_back({slot.id, use_during(slot, m).total(), use_after(slot, m).total()});
  }
  return steps;
}

MemoryUse ProgramMemory::peak_of(const std::vector<Stage>& stages) {
  MemoryUse most;
  for (std::size_t i = 0; i < stages.front().program->slots_.size(); ++i) {
    MemoryUse use;
    for (const Stage& stage : stages) use += use_during(stage.program->slots_[i], stage.memory);
    if (use.total() > most.total()) most = use;
  }
  return most;
}

std::vector<MemoryStep> ProgramMemory::steps_of(const std::vector<Stage>& stages) {
  std::vector<MemoryStep> steps = stages.front().program->steps(stages.front().memory);
  for (std::size_t s = 1; s < stages.size(); ++s) {
    const std::vector<MemoryStep> more = stages[s].program->steps(stages[s].memory);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      steps[i].during += more[i].during;
      steps[i].after += more[i].after;
    }
  }
  return steps;
}

MemoryUse ProgramMemory::use_after(const Slot& slot, const StageMemory& m) {
  MemoryUse use = use_during(slot, m);
  if (!slot.own) return use;
  use.workspace = slot.id.opcode == Opcode::kUpdate ? 0 : m.ahead;
  if (slot.id.opcode == Opcode::kForward) use.transfers -= m.received_and_free;
  if (goes_back(slot.id.opcode)) use.activations -= m.in_flight;
  if (slot.id.opcode == Opcode::kBackwardInput) use.activations += m.put_off;
  if (slot.id.opcode == Opcode::kBackwardWeight) use.activations -= m.put_off;
  return use;
}

MemoryUse ProgramMemory::use_during(const Slot& slot, const StageMemory& m) {
  const bool forward = slot.own && slot.id.opcode == Opcode::kForward;
  const bool pass = forward || (slot.own && goes_back(slot.id.opcode));
  const bool weight = slot.own && slot.id.opcode == Opcode::kBackwardWeight;
  MemoryUse use;
  use.parameters = m.parameters;
  use.gradients = m.gradients;
  use.optimizer = m.optimizer;
  use.host = m.host;
  use.activations = m.inputs + m.in_flight * (slot.others + (pass ? 1 : 0)) +
                    m.put_off * (slot.put_off + (weight ? 1 : 0));
  use.transfers = m.received * slot.received + m.sent * slot.sent +
                  m.gradients_received * slot.gradients_received +
                  m.gradients_sent * slot.gradients_sent + m.gradients_kept * slot.gradients_kept;
  if (forward) use.transfers += m.received_and_free;
  if (pass) {
    const bool parted = slot.id.opcode == Opcode::kBackwardInput;
    use.workspace = (forward  ? m.forward_peak
                     : parted ? m.input_peak
                              : m.backward_peak) -
                    m.in_flight;
  }
  if (weight) use.workspace = m.weight_peak - m.put_off;
  return use;
}

/// Adds one to `counter` of the slots [first, end).
void ProgramMemory::occupy(Counter counter, int first, int end) {
  for (int i = std::max(first, 0); i < std::min(end, size()); ++i) {
    ++(slots_[static_cast<std::size_t>(i)].*counter);
  }
}

void ProgramMemory::find_positions(const Program& program) {
  for (const Instruction& instruction : program.instructions) {
    const InstructionId& id = instruction.id;
    if (stream_of(id.opcode) != StreamKind::kCompute) continue;
    const bool own = is_own(id);
    if (own && id.opcode == Opcode::kForward) forward_[id.micro_batch] = size();
    if (own && goes_back(id.opcode)) backward_[id.micro_batch] = size();
    if (own && id.opcode == Opcode::kBackwardWeight) weight_[id.micro_batch] = size();
    if (is_of_stage_) place_.emplace(std::tuple(id.opcode, id.object, id.micro_batch), size());
    slots_.push_back({id, own});
  }
  for (const auto& [micro_batch, at] : forward_) {
    occupy(&Slot::others, at + 1, backward_.at(micro_batch));
  }
  for (const auto& [micro_batch, at] : weight_) {
    occupy(&Slot::put_off, backward_.at(micro_batch) + 1, at);
  }
}

/// Returns the first slot in which an instruction that waits for `after` may start, as far as its
/// compute instructions tell.
int ProgramMemory::earliest(const std::vector<InstructionId>& after) const {
  int slot = 0;
  for (const InstructionId& id : after) {
    if (is_of_stage_) {
      const auto place = place_.find({id.opcode, id.object, id.micro_batch});
      if (place != place_.end()) slot = std::max(slot, place->second + 1);
      continue;
    }
    if (id.opcode == Opcode::kForward) slot = std::max(slot, forward_.at(id.micro_batch) + 1);
    if (goes_back(id.opcode)) slot = std::max(slot, backward_.at(id.micro_batch) + 1);
    if (id.opcode == Opcode::kBackwardWeight) {
      slot = std::max(slot, weight_.at(id.micro_batch) + 1);
    }
  }
  return slot;
}

/// Finds when receives occupy memory. A micro-batch's cuts are received together, so the
/// micro-batch counts from its first receive.
void ProgramMemory::find_receives(const Program& program) {
  std::map<std::pair<Opcode, int>, int> first;
  int slot = 0;
  for (const Instruction& instruction : program.instructions) {
    const InstructionId& id = instruction.id;
    if (stream_of(id.opcode) != StreamKind::kRecv) continue;
    slot = std::max(slot, earliest(instruction.after));  // the stream is in order
    if (!is_own(id)) continue;
    first.emplace(std::pair(id.opcode, id.micro_batch), slot);
  }
  for (const auto& [key, at] : first) {
    if (key.first == Opcode::kRecv) {  // from its forward pass on, the pass counts them
      occupy(&Slot::received, at, forward_.at(key.second));
    } else {
      occupy(&Slot::gradients_received, at, backward_.at(key.second) + 1);
    }
  }
}

/// Returns the number of sends that have surely left when `instruction` starts, because it waits
/// for a send, or for the gradient that comes back for it.
std::size_t ProgramMemory::left_before(const Instruction& instruction, const Places& places) {
  std::size_t left = 0;
  for (const InstructionId& id : instruction.after) {
    const Opcode opcode = id.opcode == Opcode::kRecvGradient ? Opcode::kSend : id.opcode;
    const auto it = places.find({opcode, id.object, id.micro_batch});
    if (it != places.end()) left = std::max(left, it->second);
  }
  return left;
}

void ProgramMemory::find_sends(const Program& program) {
  Places places;
  std::map<std::pair<Opcode, int>, std::size_t> last;  // a micro-batch's last send, counted from 1
  std::vector<std::size_t> left;  // by slot: number of sends that have surely left
  std::size_t count = 0, so_far = 0;
  for (const Instruction& instruction : program.instructions) {
    const InstructionId& id = instruction.id;
    if (stream_of(id.opcode) == StreamKind::kSend) {
      ++count;  // the stream is in order
      places[{id.opcode, id.object, id.micro_batch}] = count;
      if (is_own(id)) last[{id.opcode, id.micro_batch}] = count;
    } else if (stream_of(id.opcode) == StreamKind::kCompute) {
      so_far = std::max(so_far, left_before(instruction, places));
      left.push_back(so_far);
    }
  }
  for (const auto& [key, place] : last) {
    const auto end = std::lower_bound(left.begin(), left.end(), place) - left.begin();
    const Counter counter = key.first == Opcode::kSend ? &Slot::sent : &Slot::gradients_sent;
    // Until the end of its backward pass, `in_flight` or the peak of that pass includes it.
    occupy(counter, backward_.at(key.second) + 1, static_cast<int>(end));
  }
}

/// Finds when gradients that other stages of the program have made wait for the backward pass of
/// this one. A micro-batch's count together, from the first on.
void ProgramMemory::find_kept_gradients(const Plan& plan, int stage) {
  std::map<int, int> first;  // by micro-batch: the slot behind the first pass that makes some
  for (const Cut& cut : plan.cuts) {
    if (cut.from != stage || !is_local(plan, cut) || !has_gradient(cut)) continue;
    for (const auto& [micro_batch, at] : backward_) {
      const InstructionId made = plan.input_pass(cut.to, micro_batch);
      const int behind = place_.at({made.opcode, made.object, made.micro_batch}) + 1;
      const auto [known, is_new] = first.emplace(micro_batch, behind);
      if (!is_new) known->second = std::min(known->second, behind);
    }
  }
  for (const auto& [micro_batch, at] : first) {
    occupy(&Slot::gradients_kept, at, backward_.at(micro_batch) + 1);
  }
}

void ProgramMemory::find_states() {
  const auto key = [](const Slot& slot) {
    return std::tuple(slot.own, slot.id.opcode, slot.others, slot.put_off, slot.received, slot.sent,
                      slot.gradients_received, slot.gradients_sent, slot.gradients_kept);
  };
  const auto less = [&](const Slot& a, const Slot& b) { return key(a) < key(b); };
  const auto equal = [&](const Slot& a, const Slot& b) { return key(a) == key(b); };
  states_ = slots_;
  std::stable_sort(states_.begin(), states_.end(), less);
  states_.erase(std::unique(states_.begin(), states_.end(), equal), states_.end());
}

}  // namespace agpcs
