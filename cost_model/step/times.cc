// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/times.h"

#include "cost_model/step/flat_step.h"
#include "cost_model/step/team/member_costs.h"
#include "cost_model/step/team/times.h"
#include "ir/base/at.h"
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/plan_body.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/segments.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/state_parts.h"
#include "ir/strategy/weight_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// The work of a stage: everything its times depend on, apart from the device.
struct StageWork {
  std::vector<OpId> ops;                       // ascending
  std::int64_t elements = 0, tensors = 0;      // sizes of its parameters
  std::vector<std::pair<int, OpId>> releases;  // bucket, operator of its last gradient
  std::vector<std::size_t> segment_ends;       // indices into `ops`
  bool again = true;                           // the segments are recomputed
  /// A bucket whose parameters are divided: the operators before which forward and backward passes
  /// need it.
  struct Need {
    int bucket = 0;
    OpId forward = 0, backward = 0;
  };
  std::vector<Need> needs;
};

using ParameterIds = std::unordered_map<std::string_view, TensorId>;

ParameterIds parameter_ids(const Graph& graph) {
  ParameterIds ids;
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.kind == TensorKind::kParameter) ids.emplace(tensor.name, id);
  }
  return ids;
}

/// Returns the operator of a stage whose backward completes a bucket there. Backward goes from the
/// last operator to the first, so a parameter gets its last gradient at the first of the stage's
/// operators that read it, and a bucket at the first of these. `ops`: the stage's, ascending.
Result<OpId> first_consumer(const PlanBucket& bucket, const Graph& graph, const ParameterIds& ids,
                            const std::vector<OpId>& ops) {
  OpId first = static_cast<OpId>(graph.ops.size());
  for (const BucketMember& member : bucket.members) {
    const auto id = ids.find(member.parameter);
    const auto of_stage = [&](OpId op) { return std::binary_search(ops.begin(), ops.end(), op); };
    const std::vector<OpId>* const readers =
        id == ids.end() ? nullptr : &graph.tensor(id->second).consumers;
    const auto reader = readers == nullptr
                            ? std::vector<OpId>::const_iterator()
                            : std::find_if(readers->begin(), readers->end(), of_stage);
    if (readers == nullptr || reader == readers->end()) {
      return invalid_input(
          fmt::format("bucket {} has parameter '{}', which its stage of model '{}' does not use",
                      bucket.name, member.parameter, graph.called()));
    }
    first = std::min(first, *reader);
  }
  return first;
}

/// Needs: the stage reads the bucket's parameters.
StageWork::Need need_of_bucket(int index, const PlanBucket& bucket, const Graph& graph,
                               const ParameterIds& ids, OpId first, const StageWork& stage) {
  OpId last = kNone;
  for (const BucketMember& member : bucket.members) {
    last = std::max(last, readers_of(graph, ids.at(member.parameter), stage.ops).back());
  }
  return {index, first, needed_before(last, stage.ops, stage.segment_ends)};
}

Result<std::vector<StageWork>> work_of_stages(const Plan& plan, const Graph& graph) {
  AGPCS_TRY(std::vector<std::vector<OpId>> ops, operators_of_stages(plan, graph));
  std::vector<StageWork> work(plan.stages.size());
  for (std::size_t s = 0; s < work.size(); ++s) {
    work[s].segment_ends = segment_ends(plan.stages[s], ops[s].size());
    work[s].again = plan.stages[s].recompute;
    work[s].ops = std::move(ops[s]);
  }
  const ParameterIds ids = parameter_ids(graph);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const PlanBucket& bucket = plan.buckets[b];
    for (const int s : stages_of(bucket)) {
      StageWork& stage = work[static_cast<std::size_t>(s)];
      AGPCS_TRY(const OpId first, first_consumer(bucket, graph, ids, stage.ops));
      stage.releases.emplace_back(static_cast<int>(b), first);
      if (bucket.divides_parameters()) {
        stage.needs.push_back(
            need_of_bucket(static_cast<int>(b), bucket, graph, ids, first, stage));
      }
      stage.elements += bucket.elements();
      stage.tensors += static_cast<std::int64_t>(bucket.members.size());
    }
  }
  // Sorts releases in the order in which backward reaches them.
  for (StageWork& stage : work) {
    std::stable_sort(stage.releases.begin(), stage.releases.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
  }
  return work;
}

/// `parted`: how the backward pass is parted, by index in `ops`; empty: it is not. `copies`: the
/// seconds of those of each segment; empty: there are none.
RankTimes times_of(const StageWork& work, const CostTable& costs, int kind, std::int64_t samples,
                   std::size_t bucket_count, bool gathers, const std::vector<double>& parted,
                   const std::vector<double>& copies) {
  RankTimes times;
  times.gradients.resize(bucket_count);
  std::vector<OpSeconds> seconds(work.ops.size());
  std::vector<double> before(work.ops.size());  // by operator: seconds of the pass before it
  for (std::size_t i = 0; i < work.ops.size(); ++i) {
    seconds[i] = costs.seconds(kind, work.ops[i], samples);
    before[i] = times.forward;
    times.forward += seconds[i].forward;
  }
  if (!copies.empty()) {
    times.forward = forward_seconds(work.ops.size(), work.segment_ends, copies,
                                    [&](std::size_t i) { return seconds[i].forward; });
  }
  const auto place_of = [&](OpId op) {
    return static_cast<std::size_t>(std::lower_bound(work.ops.begin(), work.ops.end(), op) -
                                    work.ops.begin());
  };
  times.needs.resize(gathers ? kNeedTimes * bucket_count : 0);
  for (const StageWork::Need& need : work.needs) {
    times.needs[need_times(true, false) * bucket_count + static_cast<std::size_t>(need.bucket)] =
        before[place_of(need.forward)];
  }
  const auto ends_segment = [&](std::size_t i) {
    return std::binary_search(work.segment_ends.begin(), work.segment_ends.end(), i + 1);
  };
  double elapsed = 0;
  BackwardTurns turns(copies);
  const auto repeated = [&](std::size_t first, std::size_t end) {
    turns.next(elapsed);
    before[end - 1] = elapsed;
    if (!work.again) return;
    double again = 0;
    for (std::size_t i = first; i < end; ++i) again += seconds[i].forward;
    elapsed += again;
  };
  for (std::size_t i = parted.size(); i-- > 0;) {
    times.backward += (1 - parted[i]) * seconds[i].backward;
  }
  auto release = work.releases.begin();
  walk_back(work.ops.size(), work.segment_ends, repeated, [&](std::size_t i) {
    if (!ends_segment(i)) before[i] = elapsed;
    elapsed += parted.empty() ? seconds[i].backward : parted[i] * seconds[i].backward;
    for (; release != work.releases.end() && release->second >= work.ops[i]; ++release) {
      times.gradients[static_cast<std::size_t>(release->first)] = elapsed;
    }
  });
  (parted.empty() ? times.backward : times.weight) = elapsed;
  for (const StageWork::Need& need : work.needs) {
    times.needs[need_times(false, false) * bucket_count + static_cast<std::size_t>(need.bucket)] =
        before[place_of(need.backward)];
  }
  return times;
}

/// The times of a stage whose replicas are teams, and what these exchange.
class TeamStageTimes {
 public:
  TeamStageTimes(const Plan& plan, const Graph& graph, const Cluster& cluster,
                 const CostTable& costs, MemberCosts& members, int stage, StepModel& model)
      : plan_(plan),
        graph_(graph),
        cluster_(cluster),
        costs_(costs),
        members_(members),
        stage_(stage),
        spec_(plan.stages[at(stage)]),
        model_(model) {}

  Status run(const std::vector<OpId>& ops) {
    find_apart();
    for (const int index : bodies_of(spec_)) {
      AGPCS_TRY(const TeamBody body,
                team_body_of(graph_, plan_.bodies[at(index)], ops, plan_.training.precision));
      AGPCS_RETURN_IF_ERROR(find_parameters(body));
      add(index, body);
    }
    return {};
  }

 private:
  std::vector<DeviceId> devices_of(std::size_t replica) const {
    std::vector<DeviceId> devices;
    for (const int rank : spec_.members(replica)) {
      devices.push_back(model_.ranks[at(rank)].device);
    }
    return devices;
  }

  Status find_parameters(const TeamBody& body) {
    std::unordered_map<std::string_view, TensorId> own;
    for (const TeamForm& form : body.forms) {
      const Tensor& tensor = graph_.tensor(form.tensor);
      if (tensor.kind == TensorKind::kParameter) own.emplace(tensor.name, form.tensor);
    }
    parameters_.assign(plan_.buckets.size(), {});
    for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
      if (!plan_.buckets[b].is_of(stage_)) continue;
      for (const BucketMember& member : plan_.buckets[b].members) {
        const auto id = own.find(member.parameter);
        if (id == own.end()) {
          return invalid_input(fmt::format(
              "bucket {} has parameter '{}', which its stage of model '{}' does not use",
              plan_.buckets[b].name, member.parameter, graph_.called()));
        }
        parameters_[b].push_back(id->second);
      }
    }
    return {};
  }

  /// Finds the teams that share no link with another team of the stage, whichever bodies these
  /// have.
  void find_apart() {
    std::vector<TeamPlace> teams;
    for (std::size_t replica = 0; replica < spec_.ranks.size(); ++replica) {
      teams.push_back({devices_of(replica), spec_.samples[replica]});
    }
    for (const std::vector<TeamPlace>& beside : teams_beside(cluster_, teams)) {
      apart_.push_back(beside.empty());
    }
  }

  /// Adds the replicas that have body `index`. They exchange beside one another; those with another
  /// body exchange other things at other moments.
  void add(int index, const TeamBody& body) {
    const TeamWork work(graph_, body, plan_.training.precision);
    std::vector<std::size_t> replicas;
    std::vector<TeamPlace> teams;
    for (std::size_t replica = 0; replica < spec_.ranks.size(); ++replica) {
      if (spec_.body_of(replica) != index) continue;
      replicas.push_back(replica);
      teams.push_back({devices_of(replica), spec_.samples[replica]});
    }
    const std::vector<std::vector<TeamPlace>> beside = teams_beside(cluster_, teams);
    for (std::size_t i = 0; i < teams.size(); ++i) {
      add_script(work, replicas[i], teams[i]);
      add(work, replicas[i], beside[i]);
    }
  }

  void add(const TeamWork& work, std::size_t replica, const std::vector<TeamPlace>& beside) {
    const std::vector<int> ranks = spec_.members(replica);
    const std::vector<DeviceId> devices = devices_of(replica);
    const std::int64_t samples = spec_.samples[replica];
    const std::int64_t fewer = spec_.samples_of(replica, true);
    const TeamTimes larger = work.times(cluster_, members_, devices, samples, beside);
    const TeamTimes smaller =
        fewer == samples ? larger : work.times(cluster_, members_, devices, fewer, beside);
    for (std::size_t m = 0; m < ranks.size(); ++m) {
      model_.ranks[at(ranks[m])].times = times_of_member(work, larger, smaller, devices[m], m);
    }
    const auto from = static_cast<int>(plan_.smaller_from());
    const auto all = static_cast<int>(plan_.micro_batches);
    const int team = model_.ranks[at(ranks[0])].team;
    for (const Opcode pass : {Opcode::kForward, Opcode::kBackward}) {
      const bool forward = pass == Opcode::kForward;
      add_exchanges(work.exchanges(cluster_, devices, samples, forward), {team, pass, 0, from});
      if (from == all) continue;
      add_exchanges(work.exchanges(cluster_, devices, fewer, forward), {team, pass, from, all});
    }
    add_exchanges(work.step_end_exchanges(cluster_, devices),
                  {team, Opcode::kBackward, all - 1, all});
  }

  void add_script(const TeamWork& work, std::size_t replica, const TeamPlace& team) {
    const bool alone = is_alone_on_links(plan_.stages.size(), apart_[replica]);
    const std::int64_t fewer = spec_.samples_of(replica, true);
    model_.team_scripts.resize(model_.teams.size());
    TeamScripts& scripts =
        model_.team_scripts[at(model_.ranks[at(spec_.members(replica).front())].team)];
    const auto of = [&](std::int64_t samples) {
      return work.script(cluster_, members_, team.devices, samples, alone);
    };
    scripts.larger = of(team.samples);
    if (fewer != team.samples) scripts.smaller = of(fewer);
  }

  void add_exchanges(std::vector<Exchange> exchanges, TeamCollectives of) {
    of.exchanges = std::move(exchanges);
    model_.team_exchanges.push_back(std::move(of));
  }

  static TeamPart part_of(const TeamPassSeconds& pass, std::size_t member) {
    constexpr double kRounding = 1e-12;
    const double waiting = pass.seconds - pass.exchange - pass.computing[member];
    return {pass.exchange, waiting > kRounding * pass.seconds ? waiting : 0};
  }

  RankTimes times_of_member(const TeamWork& work, const TeamTimes& larger, const TeamTimes& smaller,
                            DeviceId device, std::size_t m) const {
    RankTimes times;
    times.gradients.resize(plan_.buckets.size());
    times.larger_gradients.resize(plan_.buckets.size());
    std::int64_t elements = 0, tensors = 0;
    for (std::size_t b = 0; b < parameters_.size(); ++b) {
      if (parameters_[b].empty()) continue;
      times.gradients[b] = smaller.gradients();
      times.larger_gradients[b] = larger.gradients();
      for (const TensorId id : parameters_[b]) {
        elements += work.held(id)[m];
        ++tensors;
      }
    }
    const int kind = cluster_.devices[at(device)].kind;
    times.begin = costs_.begin_seconds(kind, elements);
    times.update = costs_.update_seconds(kind, elements, tensors);
    times.forward = larger.forward.seconds;
    times.backward = larger.backward.seconds;
    times.smaller_forward = smaller.forward.seconds;
    times.smaller_backward = smaller.backward.seconds;
    times.step_end = larger.step_end.seconds;
    times.in_forward = part_of(larger.forward, m);
    times.in_backward = part_of(larger.backward, m);
    times.in_smaller_forward = part_of(smaller.forward, m);
    times.in_smaller_backward = part_of(smaller.backward, m);
    times.in_step_end = part_of(larger.step_end, m);
    return times;
  }

  const Plan& plan_;
  const Graph& graph_;
  const Cluster& cluster_;
  const CostTable& costs_;
  MemberCosts& members_;
  int stage_;
  const PlanStage& spec_;
  StepModel& model_;
  std::vector<bool> apart_;                        // by replica
  std::vector<std::vector<TensorId>> parameters_;  // by bucket; of other stages none
};

/// The times of ranks that are alone, without members of teams.
class LoneRankTimes {
 public:
  LoneRankTimes(const Plan& plan, const Graph& graph, const Cluster& cluster,
                const CostTable& costs, const std::vector<StageWork>& work)
      : plan_(plan),
        graph_(graph),
        cluster_(cluster),
        costs_(costs),
        work_(work),
        parted_(work.size()),
        parts_(work.size()) {
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      others_.push_back(owned_by_others(plan, static_cast<int>(s), [](const auto&) { return 1; }));
    }
    for (std::size_t s = 0; s < work.size() && plan.parts_backward(); ++s) {
      for (const OpId op : work[s].ops) parted_[s].push_back(weight_part(graph, op));
    }
    gathers_ = std::any_of(plan.buckets.begin(), plan.buckets.end(),
                           [](const auto& b) { return b.divides_parameters(); });
  }

  /// Sets the times of rank `number`, `rank`.
  void set(int number, StepRank& rank) {
    const int kind = cluster_.devices[at(rank.device)].kind;
    const std::size_t replica = at(rank.place);
    std::int64_t elements = 0, others = 0, tensors = 0;
    const std::vector<int> stages = plan_.stages_of_program(rank.program);
    for (const int stage : stages) {
      const RankTimes& times = of_stage(stage, kind, replica, number);
      (stage == stages.front() ? rank.times : rank.further_times.emplace_back()) = times;
      elements += work_[at(stage)].elements;
      tensors += work_[at(stage)].tensors;
      others += others_[at(stage)][replica];
    }
    rank.times.begin = costs_.begin_seconds(kind, elements);
    const bool in_host = plan_.stages[at(stages.front())].state_in_host;
    rank.times.update = costs_.update_seconds(kind, elements - others, tensors, in_host);
  }

 private:
  /// Returns the times of passes of a stage.
  const RankTimes& of_stage(int stage, int kind, std::size_t replica, int number) {
    const PlanStage& spec = plan_.stages[at(stage)];
    const std::int64_t samples = spec.samples[replica];
    const bool odd = spec.odd == number;
    const auto [entry, added] = known_.try_emplace({stage, kind, samples, odd});
    RankTimes& times = entry->second;
    if (!added) return times;
    const auto of = [&](std::int64_t count) {
      return times_of(work_[at(stage)], costs_, kind, count, plan_.buckets.size(), gathers_,
                      parted_[at(stage)], copies(stage, kind, count));
    };
    times = of(samples);
    const RankTimes smaller = odd ? of(samples - 1) : times;
    times.smaller_forward = smaller.forward;
    times.smaller_backward = smaller.backward;
    times.smaller_weight = smaller.weight;
    times.larger_gradients = std::move(times.gradients);
    times.gradients = smaller.gradients;
    const auto larger = times.needs.begin();  // where those of smaller ones belong
    const auto half = static_cast<std::ptrdiff_t>(times.needs.size() / 2);
    std::copy(larger, larger + half, larger + half);
    std::copy(smaller.needs.begin(), smaller.needs.begin() + half, larger);
    return times;
  }

  /// Returns the seconds of the copies of what segments of a stage have in the memory of the host.
  std::vector<double> copies(int stage, int kind, std::int64_t samples) {
    if (!plan_.stages[at(stage)].activations_in_host) return {};
    if (!memory_) memory_ = std::make_unique<StageMemoryModel>(graph_, plan_.training);
    std::optional<StageParts>& parts = parts_[at(stage)];
    if (!parts) parts = parts_of_stage(plan_, graph_, stage, work_[at(stage)].ops);
    return copies_of(memory_->of(*parts, samples).to_host, cluster_.kinds[at(kind)].host_link);
  }

  const Plan& plan_;
  const Graph& graph_;
  const Cluster& cluster_;
  const CostTable& costs_;
  const std::vector<StageWork>& work_;
  std::vector<std::vector<std::int64_t>> others_;  // elements, by stage and replica
  std::vector<std::vector<double>> parted_;        // by stage and operator
  std::vector<std::optional<StageParts>> parts_;   // by stage, as far as copies need them
  std::unique_ptr<StageMemoryModel> memory_;       // likewise
  bool gathers_ = false;
  // By stage, kind, samples, and whether it takes a sample less of smaller micro-batches.
  std::map<std::tuple<int, int, std::int64_t, bool>, RankTimes> known_;
};

}  // namespace

Status add_times(const Plan& plan, const Graph& graph, const Cluster& cluster,
                 const CostTable& costs, StepModel& model) {
  AGPCS_TRY(const std::vector<StageWork> work, work_of_stages(plan, graph));
  LoneRankTimes lone(plan, graph, cluster, costs, work);
  for (int rank = 0; rank < static_cast<int>(model.ranks.size()); ++rank) {
    if (model.ranks[at(rank)].team < 0) lone.set(rank, model.ranks[at(rank)]);
  }
  MemberCosts members(graph, cluster, plan.training, costs);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    if (!plan.stages[s].has_teams()) continue;
    AGPCS_RETURN_IF_ERROR(
        TeamStageTimes(plan, graph, cluster, costs, members, static_cast<int>(s), model)
            .run(work[s].ops));
  }
  return {};
}

}  // namespace agpcs
