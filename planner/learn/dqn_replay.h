// SPDX-License-Identifier: Apache-2.0
// Replay memory of the DQN (Lin 1992; Mnih et al., Nature 2015) with n-step returns (Sutton 1988).
#pragma once

#include "ir/base/rng.h"
#include "planner/refine/search_point.h"

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

namespace agpcs {

/// A move and its consequences.
struct Transition {
  Features chosen = {};        ///< features of the move
  double reward = 0;           ///< discounted sum over n steps, from this one on
  double discount = 0;         ///< factor of the value n steps on: discount^n
  std::vector<Features> next;  ///< features of the moves n steps on; empty at the end
};

/// The memory of the last `capacity` transitions.
class Replay {
 public:
  explicit Replay(std::size_t capacity) : capacity_(capacity) {}
  std::size_t size() const { return ring_.size(); }
  void add(Transition transition);
  /// Draws `count` transitions, with repetition. Needs: size() > 0.
  std::vector<const Transition*> sample(std::size_t count, Rng& rng) const;

 private:
  std::size_t capacity_, at_ = 0;
  std::vector<Transition> ring_;
};

/// Makes the transitions of one episode from its steps.
class NStep {
 public:
  NStep(int n, double discount, Replay& replay) : n_(n), discount_(discount), replay_(replay) {}
  /// Gives the moves to choose from at the next state. Completes the move n steps ago.
  void arrive(std::span<const Features> moves);
  void step(const Features& chosen, double reward);
  /// Ends the episode at the state where it arrived last; completes all moves.
  void finish();

 private:
  struct Step {
    Features chosen;
    double reward;
  };
  void complete_oldest();

  int n_;
  double discount_;
  Replay& replay_;
  std::deque<Step> steps_;
  std::vector<Features> moves_;
};

}  // namespace agpcs
