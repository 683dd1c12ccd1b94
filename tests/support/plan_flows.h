// SPDX-License-Identifier: Apache-2.0
// Flows of plans for tests: rings, stars, random trees; and what a flow does to numbers.
#pragma once

#include "ir/base/rng.h"

#include <agpcs/plan.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace agpcs::testing {

/// Puts messages into a flow's steps, which are made as they are needed.
class FlowBuilder {
 public:
  FlowBuilder(int members, int sub_chunks) : members_(members) {
    flow_.name = "f0";
    flow_.sub_chunks = sub_chunks;
  }
  int members() const { return members_; }
  int chunks() const { return members_ * flow_.sub_chunks; }
  void add(bool gathers, int step, int from, int to, int chunk) {
    std::vector<FlowStep>& steps = gathers ? gathers_ : reduces_;
    if (steps.size() <= static_cast<std::size_t>(step))
      steps.resize(static_cast<std::size_t>(step) + 1);
    steps[static_cast<std::size_t>(step)].messages.push_back({from, to, chunk});
  }
  PlanFlow build() {
    for (std::vector<FlowStep>* steps : {&reduces_, &gathers_}) {
      for (FlowStep& step : *steps) {
        if (step.messages.empty()) continue;
        step.gathers = steps == &gathers_;
        std::sort(step.messages.begin(), step.messages.end(), [](const auto& a, const auto& b) {
          return std::tie(a.from, a.to, a.chunk) < std::tie(b.from, b.to, b.chunk);
        });
        flow_.steps.push_back(std::move(step));
      }
    }
    return flow_;
  }

 private:
  int members_;
  PlanFlow flow_;
  std::vector<FlowStep> reduces_, gathers_;
};

/// Every second sub-chunk goes round the other way.
inline PlanFlow ring_flow(int members, int sub_chunks = 1) {
  FlowBuilder builder(members, sub_chunks);
  for (int chunk = 0; chunk < builder.chunks(); ++chunk) {
    const int owner = chunk / sub_chunks, way = chunk % sub_chunks % 2 == 0 ? 1 : members - 1;
    for (int step = 0; step + 1 < members; ++step) {
      const auto at = [&](int hops) { return (owner + hops * way) % members; };
      builder.add(false, step, at(step + 1), at(step + 2), chunk);
      builder.add(true, step, at(step), at(step + 1), chunk);
    }
  }
  return builder.build();
}

/// Everybody sends its part of each chunk straight to the owner, and gets it straight from there.
inline PlanFlow star_flow(int members) {
  FlowBuilder builder(members, 1);
  for (int step = 0; step + 1 < members; ++step) {
    for (int m = 0; m < members; ++m) {
      const int other = (m + 1 + step) % members;
      builder.add(false, step, m, other, other);
      builder.add(true, step, m, other, m);
    }
  }
  return builder.build();
}

/// A random tree for each sub-chunk and phase.
inline PlanFlow random_flow(int members, int sub_chunks, Rng rng) {
  FlowBuilder builder(members, sub_chunks);
  for (int chunk = 0; chunk < builder.chunks(); ++chunk) {
    for (const bool gathers : {false, true}) {
      std::vector<int> inside = {chunk / sub_chunks};
      std::vector<int> depth(static_cast<std::size_t>(members), 0);
      for (int i = 1; i < members; ++i) {
        const int member = (chunk / sub_chunks + i) % members;
        const int parent = inside[rng.below(inside.size())];
        const int d = depth[static_cast<std::size_t>(member)] =
            depth[static_cast<std::size_t>(parent)] + 1;
        inside.push_back(member);
        if (gathers) {
          builder.add(true, d, parent, member, chunk);
        } else {
          builder.add(false, members - d, member, parent, chunk);
        }
      }
    }
  }
  return builder.build();
}

/// The same in rounds, with some waits drawn at random.
inline PlanFlow in_rounds(PlanFlow flow, int members, Rng rng) {
  flow.order = FlowOrder::kRounds;
  for (std::size_t s = 1; s < flow.steps.size(); ++s) {
    for (int from = 0; from < members; ++from) {
      for (int to = 0; to < members; ++to) {
        if (from != to && rng.below(4) == 0) flow.steps[s].after.push_back({from, to});
      }
    }
  }
  return flow;
}

/// Runs a flow on numbers, every step on what was there when it began. Whether every member ends
/// with the sum of all. Knows nothing of what a flow must be like.
inline bool flow_sums(const PlanFlow& flow, int members) {
  const auto n = static_cast<std::size_t>(members);
  const std::size_t chunks = n * static_cast<std::size_t>(flow.sub_chunks);
  std::vector<std::vector<std::uint64_t>> held(n, std::vector<std::uint64_t>(chunks));
  std::vector<std::uint64_t> sums(chunks, 0);
  Rng rng(17);
  for (auto& mine : held) {
    for (std::size_t c = 0; c < chunks; ++c) sums[c] += mine[c] = rng.below(std::uint64_t{1} << 50);
  }
  for (const FlowStep& step : flow.steps) {
    const auto before = held;
    for (const FlowMessage& m : step.messages) {
      const auto c = static_cast<std::size_t>(m.chunk);
      std::uint64_t& to = held[static_cast<std::size_t>(m.to)][c];
      to = (step.gathers ? 0 : to) + before[static_cast<std::size_t>(m.from)][c];
    }
  }
  return std::all_of(held.begin(), held.end(), [&](const auto& mine) { return mine == sums; });
}

}  // namespace agpcs::testing
