// SPDX-License-Identifier: Apache-2.0
// FlowTurns: decides which messages may go, where messages pass gates step by step.
#pragma once

#include "ir/base/at.h"

#include <array>
#include <cstddef>
#include <vector>

namespace agpcs {

/// Gates that messages pass in steps. Each message passes up to two gates, and belongs to one step
/// of each. The messages of one step may go at the same time, but only after all messages of the
/// gate's earlier steps have gone.
class FlowTurns {
 public:
  FlowTurns(std::size_t gates, std::size_t messages)
      : last_(gates, -1),
        first_(gates, -1),
        of_(messages, {-1, -1}),
        next_(messages, {-1, -1}),
        closed_(messages, 0) {}

  /// Adds a message to a step of a gate. Messages come in the order of steps; `step` is any number
  /// that does not descend at a gate.
  void add(std::size_t message, std::size_t gate, int step) {
    int& last = last_[gate];
    if (last == -1 || steps_[at(last)].number != step) {
      const auto next = static_cast<int>(steps_.size());
      (last == -1 ? first_[gate] : steps_[at(last)].next) = next;
      last = next;
      steps_.push_back({step, 0, -1});
    }
    Step& mine = steps_[at(last)];
    ++mine.left;
    const std::size_t gate_of_message = of_[message][0] == -1 ? 0 : 1;
    of_[message][gate_of_message] = last;
    const int place = static_cast<int>(2 * message + gate_of_message);
    (mine.first == -1 ? mine.first : next_of(mine.last)) = place;
    mine.last = place;
    if (last != first_[gate]) ++closed_[message];
  }

  /// Returns the number of the message's gates at which it is not its turn yet.
  int closed(std::size_t message) const { return closed_[message]; }

  /// Notes that a message has gone. Appends the messages whose turn has come at one more gate, once
  /// for each such gate.
  void go(std::size_t message, std::vector<int>& opened) {
    for (const int step : of_[message]) {
      if (step == -1 || --steps_[at(step)].left > 0 || steps_[at(step)].next == -1) continue;
      const Step& next = steps_[at(steps_[at(step)].next)];
      for (int place = next.first; place != -1; place = next_of(place)) {
        opened.push_back(place / 2);
      }
    }
  }

 private:
  struct Step {
    int number = 0, left = 0, next = -1;  // `left`: number of messages that have not gone
    int first = -1, last = -1;            // its messages, each as 2 x message + which of its gates
  };
  int& next_of(int place) { return next_[at(place / 2)][at(place % 2)]; }

  std::vector<int> last_, first_;         // by gate: steps
  std::vector<std::array<int, 2>> of_;    // by message: steps
  std::vector<std::array<int, 2>> next_;  // by message: the next one of the step, as above
  std::vector<int> closed_;               // by message: gates closed at the start
  std::vector<Step> steps_;
};

}  // namespace agpcs
