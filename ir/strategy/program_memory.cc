// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/program_memory.h"

#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

/// Returns the slot of a micro-batch's pass, which there is.
int slot_of(const std::vector<int>& slots, int micro_batch) {
  const auto place = static_cast<std::size_t>(micro_batch);
  AGPCS_CHECK(place < slots.size() && slots[place] != kNone, "no pass of micro-batch {}",
              micro_batch);
  return slots[place];
}

void set_slot(std::vector<int>& slots, int micro_batch, int slot) {
  const auto place = static_cast<std::size_t>(micro_batch);
  if (slots.size() <= place) slots.resize(place + 1, kNone);
  slots[place] = slot;
}

}  // namespace

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

ProgramMemory ProgramMemory::of_stage(const Plan& plan, const Program& program, int stage) {
  return plan.interleaves() ? ProgramMemory(plan, program, stage) : ProgramMemory(program);
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
  most.host = host_bytes(m);
  return most;
}

std::int64_t ProgramMemory::host_bytes(const StageMemory& m) const {
  std::int64_t most = 0;
  for (const Slot& state : states_) most = std::max(most, host_during(state, m));
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

/// Returns whether the slot is that of the stage's passes from which and to which activations are
/// kept.
bool ProgramMemory::is_pass(const Slot& slot) {
  return slot.own && (slot.id.opcode == Opcode::kForward || goes_back(slot.id.opcode));
}

std::int64_t ProgramMemory::host_during(const Slot& slot, const StageMemory& m) {
  return m.host + m.host_in_flight() * (slot.others + (is_pass(slot) ? 1 : 0));
}

MemoryUse ProgramMemory::use_during(const Slot& slot, const StageMemory& m) {
  const bool forward = slot.own && slot.id.opcode == Opcode::kForward;
  const bool pass = is_pass(slot);
  const bool weight = slot.own && slot.id.opcode == Opcode::kBackwardWeight;
  MemoryUse use;
  use.parameters = m.parameters;
  use.gradients = m.gradients;
  use.optimizer = m.optimizer;
  use.host = host_during(slot, m);
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
    if (own && id.opcode == Opcode::kForward) set_slot(forward_, id.micro_batch, size());
    if (own && goes_back(id.opcode)) set_slot(backward_, id.micro_batch, size());
    if (own && id.opcode == Opcode::kBackwardWeight) set_slot(weight_, id.micro_batch, size());
    if (is_of_stage_) place_.emplace(std::tuple(id.opcode, id.object, id.micro_batch), size());
    slots_.push_back({id, own});
  }
  for (int i = 0; i < static_cast<int>(forward_.size()); ++i) {
    const int forward = forward_[static_cast<std::size_t>(i)];
    if (forward != kNone) occupy(&Slot::others, forward + 1, slot_of(backward_, i));
  }
  for (int i = 0; i < static_cast<int>(weight_.size()); ++i) {
    const int weight = weight_[static_cast<std::size_t>(i)];
    if (weight != kNone) occupy(&Slot::put_off, slot_of(backward_, i) + 1, weight);
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
    if (id.opcode == Opcode::kForward) slot = std::max(slot, slot_of(forward_, id.micro_batch) + 1);
    if (goes_back(id.opcode)) slot = std::max(slot, slot_of(backward_, id.micro_batch) + 1);
    if (id.opcode == Opcode::kBackwardWeight) {
      slot = std::max(slot, slot_of(weight_, id.micro_batch) + 1);
    }
  }
  return slot;
}

/// Finds when receives occupy memory. A micro-batch's cuts are received together, so the
/// micro-batch counts from its first receive.
void ProgramMemory::find_receives(const Program& program) {
  // By micro-batch: the slot of the first receive.
  std::vector<int> activations(forward_.size(), kNone), gradients(backward_.size(), kNone);
  int slot = 0;
  for (const Instruction& instruction : program.instructions) {
    const InstructionId& id = instruction.id;
    if (stream_of(id.opcode) != StreamKind::kRecv) continue;
    slot = std::max(slot, earliest(instruction.after));  // the stream is in order
    if (!is_own(id)) continue;
    std::vector<int>& first = id.opcode == Opcode::kRecv ? activations : gradients;
    const auto place = static_cast<std::size_t>(id.micro_batch);
    AGPCS_CHECK(place < first.size(), "no pass of micro-batch {}", id.micro_batch);
    if (first[place] == kNone) first[place] = slot;
  }
  for (int i = 0; i < static_cast<int>(activations.size()); ++i) {
    const int at = activations[static_cast<std::size_t>(i)];
    // From its forward pass on, the pass counts them.
    if (at != kNone) occupy(&Slot::received, at, slot_of(forward_, i));
  }
  for (int i = 0; i < static_cast<int>(gradients.size()); ++i) {
    const int at = gradients[static_cast<std::size_t>(i)];
    if (at != kNone) occupy(&Slot::gradients_received, at, slot_of(backward_, i) + 1);
  }
}

/// Returns the number of sends that have surely left when `instruction` starts, because it waits
/// for a send, or for the gradient that comes back for it. `posted`: how many come before it.
std::size_t ProgramMemory::left_before(const Instruction& instruction,
                                       const std::vector<Sent>& sends, std::size_t posted) {
  std::size_t left = 0;
  for (const InstructionId& id : instruction.after) {
    const Opcode opcode = id.opcode == Opcode::kRecvGradient ? Opcode::kSend : id.opcode;
    const Sent wanted = {opcode, id.object, id.micro_batch, 0};
    const auto it = std::lower_bound(sends.begin(), sends.end(), wanted);
    if (it == sends.end() || wanted < *it || it->place > posted) continue;
    left = std::max(left, it->place);
  }
  return left;
}

void ProgramMemory::find_sends(const Program& program) {
  std::vector<Sent> sends;
  // By micro-batch: the place of the last send, or 0.
  std::vector<std::size_t> activations, gradients;
  for (const Instruction& instruction : program.instructions) {
    const InstructionId& id = instruction.id;
    if (stream_of(id.opcode) != StreamKind::kSend) continue;
    const std::size_t place = sends.size() + 1;  // the stream is in order
    sends.push_back({id.opcode, id.object, id.micro_batch, place});
    if (!is_own(id)) continue;
    std::vector<std::size_t>& last = id.opcode == Opcode::kSend ? activations : gradients;
    const auto micro_batch = static_cast<std::size_t>(id.micro_batch);
    if (last.size() <= micro_batch) last.resize(micro_batch + 1);
    last[micro_batch] = place;
  }
  std::sort(sends.begin(), sends.end());
  std::vector<std::size_t> left;  // by slot: number of sends that have surely left
  left.reserve(slots_.size());
  std::size_t posted = 0, so_far = 0;
  for (const Instruction& instruction : program.instructions) {
    const StreamKind stream = stream_of(instruction.id.opcode);
    if (stream == StreamKind::kSend) ++posted;
    if (stream != StreamKind::kCompute) continue;
    so_far = std::max(so_far, left_before(instruction, sends, posted));
    left.push_back(so_far);
  }
  const auto fill = [&](const std::vector<std::size_t>& last, Counter counter) {
    for (int i = 0; i < static_cast<int>(last.size()); ++i) {
      const std::size_t place = last[static_cast<std::size_t>(i)];
      if (place == 0) continue;
      const auto end = std::lower_bound(left.begin(), left.end(), place) - left.begin();
      // Until the end of its backward pass, `in_flight` or the peak of that pass includes it.
      occupy(counter, slot_of(backward_, i) + 1, static_cast<int>(end));
    }
  };
  fill(activations, &Slot::sent);
  fill(gradients, &Slot::gradients_sent);
}

/// Finds when gradients that other stages of the program have made wait for the backward pass of
/// this one. A micro-batch's count together, from the first on.
void ProgramMemory::find_kept_gradients(const Plan& plan, int stage) {
  std::map<int, int> first;  // by micro-batch: the slot behind the first pass that makes some
  for (const Cut& cut : plan.cuts) {
    if (cut.from != stage || !is_local(plan, cut) || !has_gradient(cut)) continue;
    for (int micro_batch = 0; micro_batch < static_cast<int>(backward_.size()); ++micro_batch) {
      if (backward_[static_cast<std::size_t>(micro_batch)] == kNone) continue;
      const InstructionId made = plan.input_pass(cut.to, micro_batch);
      const int behind = place_.at({made.opcode, made.object, made.micro_batch}) + 1;
      const auto [known, is_new] = first.emplace(micro_batch, behind);
      if (!is_new) known->second = std::min(known->second, behind);
    }
  }
  for (const auto& [micro_batch, at] : first) {
    occupy(&Slot::gradients_kept, at, slot_of(backward_, micro_batch) + 1);
  }
}

void ProgramMemory::find_states() {
  const auto key = [](const Slot& slot) {
    return std::tie(slot.own, slot.id.opcode, slot.others, slot.put_off, slot.received, slot.sent,
                    slot.gradients_received, slot.gradients_sent, slot.gradients_kept);
  };
  const auto less = [&](const Slot& a, const Slot& b) { return key(a) < key(b); };
  const auto equal = [&](const Slot& a, const Slot& b) { return key(a) == key(b); };
  states_ = slots_;
  std::sort(states_.begin(), states_.end(), less);  // which of equal ones stays does not matter
  states_.erase(std::unique(states_.begin(), states_.end(), equal), states_.end());
}

}  // namespace agpcs
