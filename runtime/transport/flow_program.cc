// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/flow_program.h"

#include <algorithm>
#include <map>

namespace agpcs {
namespace {

class Compiler {
 public:
  Compiler(const PlanFlow& flow, const std::vector<int>& ranks, int member)
      : flow_(flow), ranks_(ranks), member_(member) {
    program_.chunks = static_cast<int>(ranks.size()) * flow.sub_chunks;
    last_.assign(static_cast<std::size_t>(program_.chunks), -1);
  }

  FlowProgram run() {
    const std::vector<int> rounds = rounds_of(flow_);
    for (std::size_t s = 0; s < flow_.steps.size(); ++s) {
      const FlowStep& step = flow_.steps[s];
      if (flow_.order == FlowOrder::kRounds) add_round(step, rounds[s]);
      for (const FlowMessage& m : step.messages) {
        if (m.from == member_) add_send(m, rounds[s]);
      }
      for (const FlowMessage& m : step.messages) {
        if (m.to == member_) add_receive(m, rounds[s], !step.gathers);
      }
    }
    for (auto& [peer, line] : lines_) program_.lines.push_back(std::move(line));
    find_waiting_lines();
    find_widest();
    return std::move(program_);
  }

 private:
  int rank_of(int member) const { return ranks_[static_cast<std::size_t>(member)]; }

  void add_round(const FlowStep& step, int number) {
    FlowRound round = {number, {}, {}};
    for (const FlowWait& wait : step.after) {
      if (wait.from == member_) round.tells.push_back(rank_of(wait.to));
      if (wait.to == member_) round.waits_for.push_back(rank_of(wait.from));
    }
    const bool has_part =
        !round.tells.empty() || !round.waits_for.empty() ||
        std::any_of(step.messages.begin(), step.messages.end(),
                    [&](const FlowMessage& m) { return m.from == member_ || m.to == member_; });
    const bool known = !program_.rounds.empty() && program_.rounds.back().round == number;
    if (has_part && !known) program_.rounds.push_back(std::move(round));
  }

  // Adds a send after the last receive of its chunk: what a round sends came in earlier rounds.
  void add_send(const FlowMessage& m, int round) {
    FlowLine& line = lines_[m.to];
    line.peer = rank_of(m.to);
    line.sends.push_back({m.chunk, round, last_[static_cast<std::size_t>(m.chunk)]});
  }

  void add_receive(const FlowMessage& m, int round, bool adds) {
    program_.receives.push_back({rank_of(m.from), m.chunk, round, adds, {}});
    last_[static_cast<std::size_t>(m.chunk)] = static_cast<int>(program_.receives.size()) - 1;
  }

  void find_waiting_lines() {
    for (std::size_t l = 0; l < program_.lines.size(); ++l) {
      for (const FlowSend& send : program_.lines[l].sends) {
        if (send.after < 0) continue;
        std::vector<int>& waiting = program_.receives[static_cast<std::size_t>(send.after)].lines;
        if (waiting.empty() || waiting.back() != static_cast<int>(l)) {
          waiting.push_back(static_cast<int>(l));
        }
      }
    }
  }

  void find_widest() {
    std::size_t width = 0;
    for (std::size_t r = 0; r < program_.receives.size(); ++r) {
      const bool same = r > 0 && program_.receives[r].round == program_.receives[r - 1].round;
      width = same ? width + 1 : 1;
      program_.widest = std::max(program_.widest, width);
    }
  }

  const PlanFlow& flow_;
  const std::vector<int>& ranks_;
  const int member_;
  FlowProgram program_;
  std::map<int, FlowLine> lines_;  // by member
  std::vector<int> last_;          // by chunk: its last receive so far, -1: none
};

}  // namespace

FlowProgram flow_program(const PlanFlow& flow, const std::vector<int>& ranks, int member) {
  return Compiler(flow, ranks, member).run();
}

}  // namespace agpcs
