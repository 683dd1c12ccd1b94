// SPDX-License-Identifier: Apache-2.0
#include "codegen/timetable.h"

#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/strategy.h"

#include <algorithm>
#include <cstddef>

namespace agpcs {
namespace {

constexpr int kNotYet = -1;

std::vector<InstructionId> order_of_stage(const Plan& plan,
                                          const std::vector<std::int64_t>& in_flight, int stage) {
  const auto index = static_cast<std::size_t>(stage);
  const int micro_batches = static_cast<int>(plan.micro_batches);
  const int ahead = static_cast<int>(in_flight[index]) - 1;
  const int lag = plan.parts_backward() ? static_cast<int>(weight_lag(in_flight, index)) : 0;
  std::vector<InstructionId> order;
  order.reserve(static_cast<std::size_t>(plan.parts_backward() ? 3 : 2) *
                static_cast<std::size_t>(micro_batches));
  for (int i = 0; i < micro_batches + ahead + lag; ++i) {
    const int back = i - ahead, put_off = back - lag;
    if (i < micro_batches) order.push_back(plan.forward_pass(stage, i));
    if (back >= 0 && back < micro_batches) order.push_back(plan.input_pass(stage, back));
    if (put_off >= 0 && plan.parts_backward()) order.push_back(plan.weight_pass(stage, put_off));
  }
  return order;
}

std::vector<InstructionId> interleaved_order(const Plan& plan, int program, int programs) {
  const std::vector<int> stages = plan.stages_of_program(program);
  const std::vector<int> rounds =
      rounds_of_micro_batches(static_cast<int>(plan.micro_batches), programs);
  std::vector<InstructionId> forward, backward;
  int first = 0;
  for (const int size : rounds) {
    for (const int stage : stages) {
      for (int k = first; k < first + size; ++k) forward.push_back(plan.forward_pass(stage, k));
    }
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
      for (int k = first; k < first + size; ++k) backward.push_back(plan.input_pass(*stage, k));
    }
    first += size;
  }
  const auto further = static_cast<std::size_t>(rounds.front()) * (stages.size() - 1);
  const std::size_t ahead =
      std::min(2 * static_cast<std::size_t>(programs - program - 1) + further, forward.size() - 1);
  std::vector<InstructionId> order;
  for (std::size_t i = 0; i < forward.size() + ahead; ++i) {
    if (i < forward.size()) order.push_back(forward[i]);
    if (i >= ahead) order.push_back(backward[i - ahead]);
  }
  return order;
}

}  // namespace

Timetable::Timetable(const Plan& plan, const std::vector<std::int64_t>& in_flight)
    : micro_batches_(static_cast<int>(plan.micro_batches)),
      earlier_(plan.stages.size()),
      later_(plan.stages.size()),
      passes_(2 * plan.stages.size() * static_cast<std::size_t>(plan.micro_batches)) {
  const int programs = plan.interleaves() ? plan.round_size() : static_cast<int>(in_flight.size());
  for (int program = 0; program < programs; ++program) {
    orders_.push_back(plan.interleaves() ? interleaved_order(plan, program, programs)
                                         : order_of_stage(plan, in_flight, program));
  }
  ends_.resize(orders_.size());
  for (const Cut& cut : plan.cuts) {
    earlier_[static_cast<std::size_t>(cut.to)].push_back(cut.from);
    if (has_gradient(cut)) later_[static_cast<std::size_t>(cut.from)].push_back(cut.to);
  }
  bool moved = true;
  while (moved) {
    moved = false;
    for (int program = 0; program < programs; ++program) moved |= advance(program);
  }
  for (int program = 0; program < programs; ++program) {
    AGPCS_CHECK(ends(program).size() == order(program).size(),
                "schedule of program {} stops after {}", program, ends(program).size());
  }
}

int Timetable::end_of(int stage, Opcode pass, int micro_batch) const {
  const int row = 2 * stage + (goes_back(pass) ? 1 : 0);
  return passes_[static_cast<std::size_t>(row * micro_batches_ + micro_batch)];
}

/// Returns when everything that the pass needs from other stages exists, or kNotYet.
int Timetable::earliest_start(int stage, const InstructionId& id) const {
  int start = 0;
  if (id.opcode == Opcode::kBackwardWeight) return start;
  const auto& needed = id.opcode == Opcode::kForward ? earlier_ : later_;
  for (const int other : needed[static_cast<std::size_t>(stage)]) {
    const int end = end_of(other, id.opcode, id.micro_batch);
    if (end == 0) return kNotYet;
    start = std::max(start, end);
  }
  return start;
}

/// Computes all passes of `program` that can run by now; returns false if it computed none.
bool Timetable::advance(int program) {
  std::vector<int>& done = ends_[static_cast<std::size_t>(program)];
  const std::size_t before = done.size();
  while (done.size() < order(program).size()) {
    const InstructionId& id = order(program)[done.size()];
    const int stage = Plan::stage_of_pass(id, program);
    const int start = earliest_start(stage, id);
    if (start == kNotYet) break;
    done.push_back(std::max(start, done.empty() ? 0 : done.back()) + 1);
    if (id.opcode == Opcode::kBackwardWeight) continue;  // nothing waits for it elsewhere
    const int row = 2 * stage + (goes_back(id.opcode) ? 1 : 0);
    passes_[static_cast<std::size_t>(row * micro_batches_ + id.micro_batch)] = done.back();
  }
  return done.size() > before;
}

}  // namespace agpcs
