// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/interleaved.h"

#include "ir/strategy/plan_graph.h"

#include <fmt/format.h>

#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

class InterleavedChecker {
 public:
  InterleavedChecker(const Strategy& strategy, const Graph& graph)
      : s_(strategy), graph_(graph), round_(round_size(strategy)) {}

  Status run() const {
    const int stages = static_cast<int>(s_.stages.size());
    if (round_ < 2 || stages < 2 * round_ || stages % round_ != 0) {
      return fail("{} stages go round over {} device groups: each needs equally many, two or more",
                  stages, round_);
    }
    for (int i = 0; i < stages; ++i) AGPCS_RETURN_IF_ERROR(check_stage(i));
    for (const TensorId id : graph_.parameters()) AGPCS_RETURN_IF_ERROR(check_parameter(id));
    return {};
  }

 private:
  template <typename... Args>
  static Status fail(fmt::format_string<Args...> format, Args&&... args) {
    return internal_error("strategy: interleaved: " +
                          fmt::format(format, std::forward<Args>(args)...));
  }

  Status check_stage(int index) const {
    const StageSpec& spec = s_.stages[static_cast<std::size_t>(index)];
    const StageSpec& first = s_.stages[static_cast<std::size_t>(index % round_)];
    if (spec.devices != first.devices || spec.shares != first.shares || spec.odd != first.odd) {
      return fail("stage {} has other devices or shares than stage {}", index, index % round_);
    }
    if (spec.in_flight) return fail("stage {} says how many micro-batches are in flight", index);
    if (spec.has_teams()) return fail("stage {} has teams, which do not go together yet", index);
    if (spec.state_in_host) {
      return fail("stage {} has its state in the memory of hosts, which do not go together yet",
                  index);
    }
    if (spec.recompute.in_host) {
      return fail("stage {} has activations in the memory of hosts, which do not go together yet",
                  index);
    }
    if (spec.state != StateLevel::kWhole) {
      return fail("stage {} divides its state, which does not go together yet", index);
    }
    return {};
  }

  Status check_parameter(TensorId id) const {
    std::vector<int> first(static_cast<std::size_t>(round_), kNone);
    for (const int reader : stages_reading(graph_, s_.stage_of, id)) {
      int& other = first[static_cast<std::size_t>(reader % round_)];
      if (other != kNone) {
        return fail("stages {} and {} of the same devices share '{}'", other, reader,
                    graph_.tensor(id).name);
      }
      other = reader;
    }
    return {};
  }

  const Strategy& s_;
  const Graph& graph_;
  int round_;
};

}  // namespace

int round_size(const Strategy& strategy) {
  const std::vector<StageSpec>& stages = strategy.stages;
  std::size_t size = stages.size();
  if (strategy.schedule == Schedule::kInterleaved) {
    for (size = 1; size < stages.size() && stages[size].devices != stages[0].devices; ++size) {
    }
  }
  return static_cast<int>(size);
}

Status check_interleaved(const Strategy& strategy, const Graph& graph) {
  if (strategy.schedule != Schedule::kInterleaved) return {};
  return InterleavedChecker(strategy, graph).run();
}

}  // namespace agpcs
