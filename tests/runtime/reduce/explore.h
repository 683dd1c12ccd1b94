// SPDX-License-Identifier: Apache-2.0
// Visits all that can happen to a model of several ranks.
//
// A model has `kRanks` and `kActions`; `can(rank, action)` and `act(rank, action)`; `key()`, all
// that its future depends on; `wrong()`, what went wrong so far; and `over()`, whether it may rest.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {

struct Explored {
  std::size_t states = 0;   ///< in which there is a choice, or nothing left to do
  std::size_t actions = 0;  ///< taken on the way
  std::size_t ends = 0;     ///< states in which all is over
};

template <typename Model>
class Explorer {
 public:
  /// With `shortened`, only one rank acts in each state, in all ways in which it can. That is
  /// enough where what a rank can do, and what comes of it, does not depend on what others do
  /// first: then whatever they do before it they can as well do afterwards.
  explicit Explorer(bool shortened) : shortened_(shortened) {}

  /// Fails the test on a deadlock, on anything wrong, and on a state from which no end is reached.
  Explored run(Model begin) {
    settle(begin);
    note(std::move(begin));
    while (!open_.empty() && !failed_) {
      const auto [model, from] = std::move(open_.back());
      open_.pop_back();
      const auto actions = actions_of(model);
      if (actions.empty()) {
        if (!model.over()) fail("deadlock", model);
        ends_.push_back(from);
      }
      for (const auto& [rank, action] : actions) {
        Model next = model;
        act(next, rank, action);
        settle(next);
        edges_.emplace_back(note(std::move(next)), from);
        if (failed_) break;
      }
    }
    if (!failed_) expect_ways_out();
    return {seen_.size(), actions_, ends_.size()};
  }

 private:
  using State = std::uint32_t;

  /// `most` of them.
  std::vector<std::pair<int, int>> actions_of(const Model& model, std::size_t most = 1000) const {
    std::vector<std::pair<int, int>> actions;
    for (int r = 0; r < Model::kRanks && (actions.empty() || !shortened_); ++r) {
      for (int a = 0; a < Model::kActions && actions.size() < most; ++a) {
        if (model.can(r, a)) actions.emplace_back(r, a);
      }
    }
    return actions;
  }

  void act(Model& model, int rank, int action) {
    ++actions_;
    model.act(rank, action);
    if (!model.wrong().empty()) fail(model.wrong(), model);
  }

  // What has only one way to go on is no state of its own.
  void settle(Model& model) {
    constexpr int kEnough = 100'000;
    for (int steps = 0; !failed_; ++steps) {
      const auto actions = actions_of(model, 2);
      if (actions.size() != 1) return;
      act(model, actions.front().first, actions.front().second);
      if (steps == kEnough) fail("it goes on for ever", model);
    }
  }

  State note(Model model) {
    const auto [it, is_new] = seen_.try_emplace(model.key(), static_cast<State>(seen_.size()));
    if (is_new) open_.emplace_back(std::move(model), it->second);
    return it->second;
  }

  void expect_ways_out() {
    std::vector<std::size_t> begin(seen_.size() + 2, 0);  // of each state's predecessors
    for (const auto& [to, from] : edges_) ++begin[to + 2];
    for (std::size_t i = 2; i < begin.size(); ++i) begin[i] += begin[i - 1];
    std::vector<State> before(edges_.size());
    for (const auto& [to, from] : edges_) before[begin[to + 1]++] = from;
    std::vector<char> leads_out(seen_.size(), 0);
    std::vector<State> open = ends_;
    std::size_t count = 0;
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      if (std::exchange(leads_out[state], char{1}) != 0) continue;
      ++count;
      for (std::size_t i = begin[state]; i < begin[state + 1]; ++i) open.push_back(before[i]);
    }
    EXPECT_EQ(count, seen_.size()) << "from the others no end can be reached";
  }

  void fail(const std::string& what, const Model& model) {
    if (!failed_) ADD_FAILURE() << what << ": " << model.key();
    failed_ = true;
  }

  const bool shortened_;
  bool failed_ = false;
  std::unordered_map<std::string, State> seen_;
  std::vector<std::pair<Model, State>> open_;
  std::vector<std::pair<State, State>> edges_;  // to, from
  std::vector<State> ends_;
  std::size_t actions_ = 0;
};

/// Explores, and notes the figures in the test's XML.
template <typename Model>
Explored explore(const Model& begin, bool shortened) {
  const Explored found = Explorer<Model>(shortened).run(begin);
  ::testing::Test::RecordProperty("states", std::to_string(found.states));
  ::testing::Test::RecordProperty("actions", std::to_string(found.actions));
  ::testing::Test::RecordProperty("ends", std::to_string(found.ends));
  return found;
}

}  // namespace agpcs
