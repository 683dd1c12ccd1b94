// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step_stuck.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

/// Waiting instructions that a message lists.
constexpr std::size_t kShown = 8;

class StuckReport {
 public:
  StuckReport(const Plan& plan, const StepModel& model, const StepEngine& engine)
      : plan_(plan), model_(model), engine_(engine) {}

  Status run() const {
    std::vector<std::string> waits;
    for (int rank = 0; rank < static_cast<int>(model_.ranks.size()); ++rank) {
      const auto& program = program_of(rank);
      std::array<bool, kStreamKindCount> seen = {};
      for (std::size_t i = 0; i < program.size(); ++i) {
        bool& first = seen[static_cast<std::size_t>(program[i].stream)];
        if (engine_.is_done(rank, static_cast<int>(i)) || first) continue;
        first = true;
        waits.push_back(describe(rank, static_cast<int>(i)));
      }
    }
    std::string text = "the plan cannot finish; the first instruction of each stream that waits:";
    for (std::size_t i = 0; i < std::min(kShown, waits.size()); ++i) text += "\n" + waits[i];
    if (waits.size() > kShown) text += fmt::format("\n  and {} more", waits.size() - kShown);
    return internal_error(text);
  }

 private:
  int stage_of(int rank) const { return model_.ranks[static_cast<std::size_t>(rank)].stage; }
  const std::vector<StepInstruction>& program_of(int rank) const {
    return model_.programs[static_cast<std::size_t>(stage_of(rank))];
  }

  std::string describe(int rank, int index) const {
    const auto& program = program_of(rank);
    const StepInstruction& step = program[static_cast<std::size_t>(index)];
    std::string reason = "waits for gradients";
    if (engine_.running(rank, step.stream) == index) {
      reason = missing_ranks(rank, step);
    } else {
      for (std::size_t i = 0; i < program.size(); ++i) {
        const std::vector<int>& next = program[i].next;
        if (engine_.is_done(rank, static_cast<int>(i))) continue;
        if (std::find(next.begin(), next.end(), index) == next.end()) continue;
        reason = "waits for " + title_of(plan_, stage_of(rank), program[i].id);
        break;
      }
    }
    return fmt::format("  rank {}: {} {}", rank, title_of(plan_, stage_of(rank), step.id), reason);
  }

  /// The ranks that did not come to the meetings of an instruction that runs.
  std::string missing_ranks(int rank, const StepInstruction& step) const {
    std::set<int> missing;
    if (step.stream == StreamKind::kCollective) {
      for (int other = 0; other < static_cast<int>(model_.ranks.size()); ++other) {
        const bool member = step.id.opcode == Opcode::kReport || stage_of(other) == stage_of(rank);
        if (member && !is_there(other, StreamKind::kCollective, step.id)) missing.insert(other);
      }
      return missing_text(missing);
    }
    const bool sends = step.stream == StreamKind::kSend;
    const int other_end = sends ? 1 : -1;  // send, recv; send_gradient, recv_gradient
    const InstructionId wanted = {static_cast<Opcode>(static_cast<int>(step.id.opcode) + other_end),
                                  step.id.object, step.id.micro_batch};
    for (const int index : model_.channels_of(rank, step.id)) {
      const Channel& channel = model_.channels[static_cast<std::size_t>(index)];
      const int other = sends ? channel.to : channel.from;
      if (!is_there(other, stream_of(wanted.opcode), wanted)) missing.insert(other);
    }
    return missing_text(missing);
  }

  bool is_there(int rank, StreamKind stream, const InstructionId& id) const {
    const int index = engine_.running(rank, stream);
    return index >= 0 && program_of(rank)[static_cast<std::size_t>(index)].id == id;
  }

  static std::string missing_text(const std::set<int>& missing) {
    return fmt::format("waits for rank {}", fmt::join(missing, ", "));
  }

  const Plan& plan_;
  const StepModel& model_;
  const StepEngine& engine_;
};

}  // namespace

Status stuck_error(const Plan& plan, const StepModel& model, const StepEngine& engine) {
  return StuckReport(plan, model, engine).run();
}

}  // namespace agpcs
