// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/memory.h"

#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/plan_body.h"
#include "ir/strategy/program_memory.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/state_parts.h"
#include "ir/team/member_graph.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <deque>
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

/// What ranks hold of their stages. Ranks that hold the same are worked out once.
class RankMemories {
 public:
  explicit RankMemories(const Plan& plan) : held_(static_cast<std::size_t>(plan.rank_count())) {}

  const ProgramMemory& add_program(ProgramMemory program) {
    return programs_.emplace_back(std::move(program));
  }
  int add(const ProgramMemory& program, const StageMemory& memory) {
    known_.push_back({&program, memory});
    return static_cast<int>(known_.size()) - 1;
  }
  void give(int rank, int memory) { held_[static_cast<std::size_t>(rank)].push_back(memory); }

  /// Returns, by rank, `of_one(program, memory)`, or `of_several` of ranks that have several
  /// stages.
  template <typename T, typename OfOne, typename OfSeveral>
  std::vector<T> of_ranks(OfOne of_one, OfSeveral of_several) const {
    std::vector<T> ranks;
    std::map<std::vector<int>, T> results;
    for (const std::vector<int>& held : held_) {
      auto it = results.find(held);
      if (it == results.end()) {
        std::vector<ProgramMemory::Stage> stages;
        for (const int one : held) stages.push_back(known_[static_cast<std::size_t>(one)]);
        it = results
                 .emplace(held, stages.size() == 1 ? of_one(*stages[0].program, stages[0].memory)
                                                   : of_several(stages))
                 .first;
      }
      ranks.push_back(it->second);
    }
    return ranks;
  }

 private:
  std::deque<ProgramMemory> programs_;
  std::vector<ProgramMemory::Stage> known_;
  std::vector<std::vector<int>> held_;  // by rank: one of `known_` for each of its stages
};

/// Returns the memory of the program of a stage, as far as the stage is concerned.
ProgramMemory program_memory(const Plan& plan, int stage) {
  const Program& program = plan.programs[static_cast<std::size_t>(plan.program_of(stage))];
  return ProgramMemory::of_stage(plan, program, stage);
}

/// Gives the ranks of a stage whose replicas are teams with body `index` what they hold. A member's
/// memory is that of a replica that runs the member's graph; of its stage's buckets it has its own
/// parts, and beside unlike teams the memory in which slices of them are summed.
void add_members(const Plan& plan, const Graph& graph, int stage, int index, const TeamBody& body,
                 const ProgramMemory& program, RankMemories& ranks) {
  const PlanStage& teams = plan.stages[static_cast<std::size_t>(stage)];
  std::size_t like = 0;
  while (teams.body_of(like) != index) ++like;
  for (std::size_t m = 0; m < body.members(); ++m) {
    const Graph own = member_graph(graph, body, m);
    std::vector<OpId> ops(own.ops.size());
    std::iota(ops.begin(), ops.end(), 0);
    StageParts parts = parts_of_stage(plan, own, stage, std::move(ops));
    parts.gradients = 0;
    for (const PlanBucket& bucket : plan.buckets) {
      if (!bucket.is_of(stage)) continue;
      const std::int64_t elements = member_elements(plan, bucket, stage, m, like);
      const DType travels = travelling_type(bucket.type, plan.training.wire_type);
      parts.gradients += elements * static_cast<std::int64_t>(size_of(bucket.type));
      if (teams.has_unlike_teams()) {
        parts.gradients += elements * static_cast<std::int64_t>(size_of(travels));
      }
      if (travels == bucket.type || !is_reduced(plan, bucket)) continue;
      parts.gradients += elements * static_cast<std::int64_t>(size_of(travels));
    }
    StageMemoryModel model(own, plan.training);
    std::map<std::int64_t, int> known;  // by samples
    for (std::size_t i = 0; i < teams.ranks.size(); ++i) {
      if (teams.body_of(i) != index) continue;
      const std::int64_t samples = teams.samples[i];
      auto it = known.find(samples);
      if (it == known.end()) {
        it = known.emplace(samples, ranks.add(program, model.of(parts, samples))).first;
      }
      ranks.give(teams.members(i)[m], it->second);
    }
  }
}

/// Gives the ranks of a stage whose replicas are single ranks what they hold.
void add_replicas(const Plan& plan, int stage, const StageParts& parts,
                  const ProgramMemory& program, StageMemoryModel& model, RankMemories& ranks) {
  const PlanStage& of = plan.stages[static_cast<std::size_t>(stage)];
  const std::vector<std::int64_t> others = owned_by_others(
      plan, stage,
      [&](const PlanBucket& bucket) { return state_bytes(plan.training.optimizer, bucket.type); });
  const std::vector<std::int64_t> sums = divided_sums(plan, stage);
  const std::vector<std::int64_t> elsewhere = parameters_elsewhere(plan, stage);
  // By samples, state of others, sums of gradients, parameters of others.
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>, int> known;
  for (std::size_t i = 0; i < of.ranks.size(); ++i) {
    const std::int64_t samples = of.samples[i];
    const std::tuple key(samples, others[i], sums[i], elsewhere[i]);
    auto it = known.find(key);
    if (it == known.end()) {
      StageMemory memory = model.of(parts, samples);
      memory.optimizer -= others[i];
      if (of.state_in_host) move_state_to_host(plan.training, memory);
      memory.gradients += sums[i];
      memory.parameters -= elsewhere[i];
      it = known.emplace(key, ranks.add(program, memory)).first;
    }
    ranks.give(of.ranks[i], it->second);
  }
}

Result<RankMemories> rank_memories(const Plan& plan, const Graph& graph) {
  AGPCS_TRY(const auto stages, operators_of_stages(plan, graph));
  StageMemoryModel model(graph, plan.training);
  RankMemories ranks(plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    const int index = static_cast<int>(s);
    const ProgramMemory& program = ranks.add_program(program_memory(plan, index));
    if (!stage.has_teams()) {
      add_replicas(plan, index, parts_of_stage(plan, graph, index, stages[s]), program, model,
                   ranks);
      continue;
    }
    for (const int b : bodies_of(stage)) {
      AGPCS_TRY(const TeamBody body, team_body_of(graph, plan.bodies[static_cast<std::size_t>(b)],
                                                  stages[s], plan.training.precision));
      add_members(plan, graph, index, b, body, program, ranks);
    }
  }
  return ranks;
}

}  // namespace

MemoryUse& MemoryUse::operator+=(const MemoryUse& other) {
  parameters += other.parameters;
  gradients += other.gradients;
  optimizer += other.optimizer;
  activations += other.activations;
  transfers += other.transfers;
  workspace += other.workspace;
  host += other.host;
  return *this;
}

Result<std::vector<MemoryUse>> peak_memory(const Plan& plan, const Graph& graph) {
  AGPCS_TRY(const RankMemories ranks, rank_memories(plan, graph));
  return ranks.of_ranks<MemoryUse>(
      [](const ProgramMemory& p, const StageMemory& m) { return p.peak(m); },
      ProgramMemory::peak_of);
}

Result<std::vector<std::vector<MemoryStep>>> memory_over_step(const Plan& plan,
                                                              const Graph& graph) {
  AGPCS_TRY(const RankMemories ranks, rank_memories(plan, graph));
  return ranks.of_ranks<std::vector<MemoryStep>>(
      [](const ProgramMemory& p, const StageMemory& m) { return p.steps(m); },
      ProgramMemory::steps_of);
}

}  // namespace agpcs
