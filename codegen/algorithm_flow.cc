// SPDX-License-Identifier: Apache-2.0
#include "codegen/algorithm_flow.h"

#include "ir/base/check.h"
#include "ir/plan/reduction_tree.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

/// Steps of both phases, which are made as messages name them.
class Steps {
 public:
  explicit Steps(int chunks) : chunks_(chunks) {}

  void add(bool gathers, int step, int from, int to, int chunk) {
    std::vector<FlowStep>& steps = gathers ? gathers_ : reduces_;
    if (static_cast<int>(steps.size()) <= step) steps.resize(static_cast<std::size_t>(step) + 1);
    steps[static_cast<std::size_t>(step)].gathers = gathers;
    steps[static_cast<std::size_t>(step)].messages.push_back({from, to, chunk});
  }

  void add_all_chunks(bool gathers, int step, int from, int to) {
    for (int chunk = 0; chunk < chunks_; ++chunk) add(gathers, step, from, to, chunk);
  }

  /// Chunk c goes round `members` to the one at position c mod members, and on from there.
  void add_ring(int first_reduce, int first_gather, const std::vector<int>& members) {
    const int n = static_cast<int>(members.size());
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const auto at = [&](int hops) {
        return members[static_cast<std::size_t>((chunk + hops) % n)];
      };
      for (int step = 0; step + 1 < n; ++step) {
        add(false, first_reduce + step, at(step + 1), at(step + 2), chunk);
        add(true, first_gather + step, at(step), at(step + 1), chunk);
      }
    }
  }

  std::vector<FlowStep> take() {
    std::vector<FlowStep> all = std::move(reduces_);
    std::move(gathers_.begin(), gathers_.end(), std::back_inserter(all));
    std::erase_if(all, [](const FlowStep& step) { return step.messages.empty(); });
    for (FlowStep& step : all) {
      std::sort(step.messages.begin(), step.messages.end(),
                [](const FlowMessage& a, const FlowMessage& b) {
                  return std::tie(a.from, a.to, a.chunk) < std::tie(b.from, b.to, b.chunk);
                });
    }
    return all;
  }

 private:
  int chunks_;
  std::vector<FlowStep> reduces_, gathers_;
};

void add_tree(const std::vector<int>& host_of_member, Steps& steps) {
  const ReductionTree tree = reduction_tree(host_of_member);
  for (std::size_t m = 0; m < tree.members.size(); ++m) {
    const ReductionTree::Member& member = tree.members[m];
    if (member.parent < 0) continue;
    steps.add_all_chunks(false, tree.depth - member.depth, static_cast<int>(m), member.parent);
    steps.add_all_chunks(true, member.depth - 1, member.parent, static_cast<int>(m));
  }
}

void add_hierarchical(const std::vector<int>& host_of_member, Steps& steps) {
  const std::vector<std::vector<int>> hosts = members_by_host(host_of_member);
  std::vector<int> heads;
  int longest = 0;
  for (const std::vector<int>& host : hosts) {
    heads.push_back(host[0]);
    longest = std::max(longest, static_cast<int>(host.size()));
  }
  const int head_count = static_cast<int>(heads.size());
  for (const std::vector<int>& host : hosts) {
    for (int p = 1; p < static_cast<int>(host.size()); ++p) {
      const auto at = static_cast<std::size_t>(p);
      steps.add_all_chunks(false, longest - 1 - p, host[at], host[at - 1]);
      steps.add_all_chunks(true, head_count - 1 + p - 1, host[at - 1], host[at]);
    }
  }
  steps.add_ring(longest - 1, 0, heads);
}

}  // namespace

PlanFlow algorithm_flow(AllReduce algorithm, const std::vector<int>& host_of_member) {
  AGPCS_CHECK(algorithm != AllReduce::kFlow, "a flow of {} members without its schedule",
              host_of_member.size());
  Steps steps(static_cast<int>(host_of_member.size()));
  if (algorithm == AllReduce::kTree) {
    add_tree(host_of_member, steps);
  } else if (algorithm == AllReduce::kHierarchical) {
    add_hierarchical(host_of_member, steps);
  } else {
    std::vector<int> members(host_of_member.size());
    for (std::size_t m = 0; m < members.size(); ++m) members[m] = static_cast<int>(m);
    steps.add_ring(0, 0, members);
  }
  PlanFlow flow;
  flow.name = std::string(name_of(algorithm));
  flow.steps = steps.take();
  return flow;
}

}  // namespace agpcs
