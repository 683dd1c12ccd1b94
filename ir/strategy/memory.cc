// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/memory.h"

#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/plan_body.h"
#include "ir/strategy/program_memory.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/state_parts.h"
#include "ir/team/member_graph.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

/// Converts `PlanStage::operators` to OpIds.
class OperatorResolver {
 public:
  explicit OperatorResolver(const Graph& graph)
      : graph_(graph), stage_of_(graph.ops.size(), kNone) {
    for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) ids_[graph.op(op).name] = op;
  }

  Result<std::vector<std::vector<OpId>>> run(const Plan& plan) {
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      stages_.emplace_back();
      for (const PlanStage::Run& run : plan.stages[i].operators) {
        AGPCS_RETURN_IF_ERROR(add_run(static_cast<int>(i), run));
      }
      std::sort(stages_.back().begin(), stages_.back().end());
    }
    for (OpId op = 0; op < static_cast<OpId>(stage_of_.size()); ++op) {
      if (stage_of_[static_cast<std::size_t>(op)] == kNone) {
        return fail("operator '{}' is in no stage", graph_.op(op).name);
      }
    }
    return std::move(stages_);
  }

 private:
  template <typename... Args>
  static Status fail(fmt::format_string<Args...> format, Args&&... args) {
    return invalid_input("plan: error: " + fmt::format(format, std::forward<Args>(args)...));
  }

  Status add_run(int stage, const PlanStage::Run& run) {
    const auto first = ids_.find(run.first), last = ids_.find(run.last);
    if (first == ids_.end() || last == ids_.end()) {
      return fail("stage s{}: the model has no operator '{}'", stage,
                  first == ids_.end() ? run.first : run.last);
    }
    if (last->second - first->second + 1 != run.count) {
      return fail("stage s{}: the model has {} operators from '{}' to '{}', the plan has {}", stage,
                  last->second - first->second + 1, run.first, run.last, run.count);
    }
    for (OpId op = first->second; op <= last->second; ++op) {
      int& owner = stage_of_[static_cast<std::size_t>(op)];
      if (owner != kNone) {
        return fail("operator '{}' is in stage s{} and in stage s{}", graph_.op(op).name, owner,
                    stage);
      }
      owner = stage;
      stages_.back().push_back(op);
    }
    return {};
  }

  const Graph& graph_;
  std::unordered_map<std::string_view, OpId> ids_;
  std::vector<int> stage_of_;
  std::vector<std::vector<OpId>> stages_;
};

}  // namespace

Result<std::vector<std::vector<OpId>>> resolve_stages(const Plan& plan, const Graph& graph) {
  const std::string digest = digest_of(print_graph(graph));
  if (digest != plan.model_digest) {
    return invalid_input(fmt::format(
        "plan: error: the plan is for model '{}' ({}), this model is '{}' ({})\n"
        "  hint: give the model that the plan was made for, with the same --dim, or compile again",
        plan.model, plan.model_digest, graph.called(), digest));
  }
  return operators_of_stages(plan, graph);
}

Result<std::vector<std::vector<OpId>>> operators_of_stages(const Plan& plan, const Graph& graph) {
  return OperatorResolver(graph).run(plan);
}

namespace {

/// Returns, by replica, the bytes of the sums of gradients that it keeps where ranks divide them.
std::vector<std::int64_t> divided_sums(const Plan& plan, int stage) {
  std::int64_t all = 0;
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.is_of(stage) && bucket.divides_gradients()) all += bucket.bytes();
  }
  std::vector<std::int64_t> sums =
      owned_by_others(plan, stage, [](const PlanBucket& bucket) -> std::int64_t {
        return bucket.divides_gradients() ? static_cast<std::int64_t>(size_of(bucket.type)) : 0;
      });
  for (std::int64_t& sum : sums) sum = all - sum;
  return sums;
}

/// Returns, by replica, the bytes of the parameters that others own where ranks divide them.
std::vector<std::int64_t> parameters_elsewhere(const Plan& plan, int stage) {
  return owned_by_others(plan, stage, [](const PlanBucket& bucket) -> std::int64_t {
    return bucket.divides_parameters() ? static_cast<std::int64_t>(size_of(bucket.type)) : 0;
  });
}

/// Writes `of(program, stage memory)` of the ranks of a stage whose replicas are teams. A member's
/// memory is that of a replica that runs the member's graph; of its stage's buckets it has its own
/// parts.
template <typename T, typename Of>
void of_members(const Plan& plan, const Graph& graph, int stage, const TeamBody& body,
                const ProgramMemory& program, Of of, std::vector<T>& ranks) {
  const PlanStage& teams = plan.stages[static_cast<std::size_t>(stage)];
  for (std::size_t m = 0; m < body.members(); ++m) {
    const Graph own = member_graph(graph, body, m);
    std::vector<OpId> ops(own.ops.size());
    std::iota(ops.begin(), ops.end(), 0);
    StageParts parts = parts_of_stage(plan, own, stage, std::move(ops));
    parts.gradients = 0;
    for (const PlanBucket& bucket : plan.buckets) {
      if (!bucket.is_of(stage)) continue;
      const std::int64_t elements = member_elements(plan, bucket, stage, m);
      const DType travels = travelling_type(bucket.type, plan.training.wire_type);
      parts.gradients += elements * static_cast<std::int64_t>(size_of(bucket.type));
      if (travels == bucket.type || !is_reduced(plan, bucket)) continue;
      parts.gradients += elements * static_cast<std::int64_t>(size_of(travels));
    }
    StageMemoryModel model(own, plan.training);
    std::map<std::int64_t, T> known;  // by samples
    for (std::size_t i = 0; i < teams.ranks.size(); ++i) {
      const std::int64_t samples = teams.samples[i];
      auto it = known.find(samples);
      if (it == known.end())
        it = known.emplace(samples, of(program, model.of(parts, samples))).first;
      ranks[static_cast<std::size_t>(teams.members(i)[m])] = it->second;
    }
  }
}

/// Returns `of(program, stage memory)` of each rank; equal replicas are computed once.
template <typename T, typename Of>
Result<std::vector<T>> of_ranks(const Plan& plan, const Graph& graph, Of of) {
  AGPCS_TRY(const auto stages, operators_of_stages(plan, graph));
  StageMemoryModel model(graph, plan.training);
  std::vector<T> ranks(static_cast<std::size_t>(plan.rank_count()));
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    const ProgramMemory program(plan.programs[s]);
    if (stage.has_teams()) {
      AGPCS_TRY(const TeamBody body,
                team_body_of(graph, plan.bodies[static_cast<std::size_t>(stage.body)], stages[s],
                             plan.training.precision));
      of_members<T>(plan, graph, static_cast<int>(s), body, program, of, ranks);
      continue;
    }
    const StageParts parts = parts_of_stage(plan, graph, static_cast<int>(s), stages[s]);
    const std::vector<std::int64_t> others =
        owned_by_others(plan, static_cast<int>(s), [&](const PlanBucket& bucket) {
          return state_bytes(plan.training.optimizer, bucket.type);
        });
    const std::vector<std::int64_t> sums = divided_sums(plan, static_cast<int>(s));
    const std::vector<std::int64_t> elsewhere = parameters_elsewhere(plan, static_cast<int>(s));
    // By samples, state of others, sums of gradients, parameters of others.
    std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>, T> known;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      const std::int64_t samples = stage.samples[i];
      const std::tuple key(samples, others[i], sums[i], elsewhere[i]);
      auto it = known.find(key);
      if (it == known.end()) {
        StageMemory memory = model.of(parts, samples);
        memory.optimizer -= others[i];
        memory.gradients += sums[i];
        memory.parameters -= elsewhere[i];
        it = known.emplace(key, of(program, memory)).first;
      }
      ranks[static_cast<std::size_t>(stage.ranks[i])] = it->second;
    }
  }
  return ranks;
}

}  // namespace

Result<std::vector<MemoryUse>> peak_memory(const Plan& plan, const Graph& graph) {
  return of_ranks<MemoryUse>(
      plan, graph, [](const ProgramMemory& p, const StageMemory& m) { return p.peak(m); });
}

Result<std::vector<std::vector<MemoryStep>>> memory_over_step(const Plan& plan,
                                                              const Graph& graph) {
  return of_ranks<std::vector<MemoryStep>>(
      plan, graph, [](const ProgramMemory& p, const StageMemory& m) { return p.steps(m); });
}

}  // namespace agpcs
