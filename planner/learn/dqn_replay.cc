// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/dqn_replay.h"

#include <utility>

namespace agpcs {

void Replay::add(Transition transition) {
  if (ring_.size() < capacity_) {
    ring_.push_back(std::move(transition));
    return;
  }
  ring_[at_] = std::move(transition);
  at_ = (at_ + 1) % capacity_;
}

std::vector<const Transition*> Replay::sample(std::size_t count, Rng& rng) const {
  std::vector<const Transition*> result(count);
  for (const Transition*& transition : result) transition = &ring_[rng.below(ring_.size())];
  return result;
}

void NStep::arrive(std::span<const Features> moves) {
  moves_.assign(moves.begin(), moves.end());
  if (steps_.size() == static_cast<std::size_t>(n_)) complete_oldest();
}

void NStep::step(const Features& chosen, double reward) { steps_.push_back({chosen, reward}); }

void NStep::finish() {
  while (!steps_.empty()) complete_oldest();
}

void NStep::complete_oldest() {
  Transition transition;
  transition.chosen = steps_.front().chosen;
  transition.discount = 1;
  for (const Step& step : steps_) {
    transition.reward += transition.discount * step.reward;
    transition.discount *= discount_;
  }
  transition.next = moves_;
  steps_.pop_front();
  replay_.add(std::move(transition));
}

}  // namespace agpcs
