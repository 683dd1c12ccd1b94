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

std::vector<InstructionId> schedule_order(const Plan& plan,
                                          const std::vector<std::int64_t>& in_flight,
                                          std::size_t stage) {
  const int micro_batches = static_cast<int>(plan.micro_batches);
  const int ahead = static_cast<int>(in_flight[stage]) - 1;
  const int lag = plan.parts_backward() ? static_cast<int>(weight_lag(in_flight, stage)) : 0;
  std::vector<InstructionId> order;
  for (int i = 0; i < micro_batches + ahead + lag; ++i) {
    const int back = i - ahead, put_off = back - lag;
    if (i < micro_batches) order.push_back({Opcode::kForward, -1, i});
    if (back >= 0 && back < micro_batches) order.push_back(plan.input_pass(back));
    if (put_off >= 0 && plan.parts_backward()) order.push_back(plan.weight_pass(put_off));
  }
  return order;
}

}  // namespace

Timetable::Timetable(const Plan& plan, const std::vector<std::int64_t>& in_flight)
    : micro_batches_(static_cast<int>(plan.micro_batches)),
      earlier_(plan.stages.size()),
      later_(plan.stages.size()),
      ends_(plan.stages.size()),
      passes_(2 * plan.stages.size() * static_cast<std::size_t>(plan.micro_batches)) {
  const int stages = static_cast<int>(plan.stages.size());
  for (std::size_t s = 0; s < in_flight.size(); ++s) {
    orders_.push_back(schedule_order(plan, in_flight, s));
  }
  for (const Cut& cut : plan.cuts) {
    earlier_[static_cast<std::size_t>(cut.to)].push_back(cut.from);
    if (has_gradient(cut)) later_[static_cast<std::size_t>(cut.from)].push_back(cut.to);
  }
  bool moved = true;
  while (moved) {
    moved = false;
    for (int stage = 0; stage < stages; ++stage) moved |= advance(stage);
  }
  for (int stage = 0; stage < stages; ++stage) {
    AGPCS_CHECK(ends(stage).size() == order(stage).size(), "schedule of stage {} stops after {}",
                stage, ends(stage).size());
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

/// Computes all passes of `stage` that can run by now; returns false if it computed none.
bool Timetable::advance(int stage) {
  std::vector<int>& done = ends_[static_cast<std::size_t>(stage)];
  const std::size_t before = done.size();
  while (done.size() < order(stage).size()) {
    const InstructionId& id = order(stage)[done.size()];
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
