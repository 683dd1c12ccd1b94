// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/model.h"

#include "cost_model/flows/exchange.h"
#include "cost_model/step/simulator.h"
#include "cost_model/step/times.h"
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/plan/body/body.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/body/slices.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace agpcs {
namespace {

/// Returns the bytes that travel of a bucket that member `member` of teams sums.
std::int64_t travelling_bytes_of(const Plan& plan, const PlanBucket& bucket, std::size_t member) {
  const DType type = travelling_type(bucket.type, plan.training.wire_type);
  return member_elements(plan, bucket, bucket.stage, member) *
         static_cast<std::int64_t>(size_of(type));
}

int channel_end_index(int cut, Opcode opcode) {
  return cut * 4 + static_cast<int>(opcode) - static_cast<int>(Opcode::kSend);
}

/// Builds the channels of cuts, and the lists of the channels that each end waits for.
class ChannelBuilder {
 public:
  ChannelBuilder(const Plan& plan, const Cluster& cluster, StepModel& model)
      : plan_(plan), cluster_(cluster), model_(model) {}

  /// Adds the channels of a cut for the micro-batches of the size of `micro_batch`.
  void add_cut(int cut, int micro_batch) {
    first_end_ = micro_batch < model_.smaller_from ? 0 : 4 * plan_.cuts.size();
    Bytes forward, back;
    for (const int producer : plan_.stages[at(of(cut).from)].all_ranks()) {
      for (const Transfer& t : transfers(plan_, cut, producer, micro_batch)) {
        forward[{producer, t.peer}] += bytes_of(cut, t);
      }
    }
    for (const int consumer : plan_.stages[at(of(cut).to)].all_ranks()) {
      for (const Transfer& t : transfers(plan_, cut, consumer, micro_batch, true)) {
        if (of(cut).tensors[at(t.tensor)].gradient) {
          back[{consumer, t.peer}] += bytes_of(cut, t);
        }
      }
    }
    add_direction(cut, forward, Opcode::kSend, Opcode::kRecv);
    add_direction(cut, back, Opcode::kSendGradient, Opcode::kRecvGradient);
  }

 private:
  using Bytes = std::map<std::pair<int, int>, std::int64_t>;  // by sender and receiver

  const Cut& of(int cut) const { return plan_.cuts[static_cast<std::size_t>(cut)]; }
  std::int64_t bytes_of(int cut, const Transfer& t) const {
    const CutTensor& tensor = of(cut).tensors[at(t.tensor)];
    return t.rows * tensor.elements_per_row() * static_cast<std::int64_t>(size_of(tensor.type));
  }
  DeviceId device(int rank) const { return model_.ranks[static_cast<std::size_t>(rank)].device; }

  void add_direction(int cut, const Bytes& bytes, Opcode send, Opcode recv) {
    for (const auto& [ranks, count] : bytes) {
      const auto [from, to] = ranks;
      const int channel = static_cast<int>(model_.channels.size());
      model_.channels.push_back(
          {from, to, count, transfer(cluster_, device(from), device(to), count)});
      end(cut, send, from).push_back(channel);
      end(cut, recv, to).push_back(channel);
    }
  }

  std::vector<int>& end(int cut, Opcode opcode, int rank) {
    const std::size_t place = at(model_.ranks[at(rank)].place);
    auto& by_place =
        model_.channel_ends[first_end_ + static_cast<std::size_t>(channel_end_index(cut, opcode))];
    if (by_place.size() <= place) by_place.resize(place + 1);
    return by_place[place];
  }

  const Plan& plan_;
  const Cluster& cluster_;
  StepModel& model_;
  std::size_t first_end_ = 0;  // index in channel_ends for these micro-batches
};

Status add_ranks(const Plan& plan, const Cluster& cluster, StepModel& model) {
  std::unordered_map<std::string, DeviceId> device_of;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) device_of[cluster.device_name(id)] = id;
  model.ranks.resize(static_cast<std::size_t>(plan.rank_count()));
  const std::vector<std::string> devices = devices_of_ranks(plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    const int number = static_cast<int>(s);
    if (!stage.idle() && number >= model.round) continue;  // its ranks are those of an earlier one
    int place = 0;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      const std::vector<int> members = stage.members(i);
      for (std::size_t m = 0; m < members.size(); ++m) {
        const std::string& name = devices[at(members[m])];
        const auto device = device_of.find(name);
        if (device == device_of.end()) {
          return invalid_input(
              fmt::format("the plan's device '{}' is not in cluster '{}'", name, cluster.name));
        }
        const int team = stage.has_teams() ? static_cast<int>(model.teams.size()) : -1;
        model.ranks[at(members[m])] = {
            number, plan.program_of(number), device->second, place++, team, static_cast<int>(m),
            {}};
      }
      if (stage.has_teams()) model.teams.push_back(members);
    }
  }
  return {};
}

/// Returns the devices of a group; `all` are those of all ranks.
std::vector<DeviceId> devices_of(const PlanGroup& group, const std::vector<DeviceId>& all) {
  std::vector<DeviceId> devices;
  for (const int rank : group.ranks) devices.push_back(all[at(rank)]);
  return devices;
}

/// Returns the all-reduces of a bucket by the further members of teams; `groups` sum it.
std::vector<Exchange> further_sums(const Plan& plan, const Cluster& cluster,
                                   const PlanBucket& bucket, const std::vector<PlanGroup>& groups,
                                   const std::vector<DeviceId>& all) {
  std::vector<Exchange> sums;
  for (std::size_t m = 1; m < groups.size(); ++m) {
    sums.push_back(all_reduce(cluster, devices_of(groups[m], all), bucket.algorithm,
                              travelling_bytes_of(plan, bucket, m)));
  }
  return sums;
}

/// Returns the sum of a bucket of a stage whose replicas are unlike teams, as one exchange that all
/// of its ranks begin together. Groups without a rank in common sum their slices at the same time;
/// a rank sums its own one after the other.
Exchange sum_of_slices(const Plan& plan, const Cluster& cluster, std::size_t bucket,
                       const std::vector<DeviceId>& all) {
  const PlanBucket& of = plan.buckets[bucket];
  const DType type = travelling_type(of.type, plan.training.wire_type);
  const StageSlices slices(plan, of.stage);
  std::map<int, std::size_t> free;  // by rank: the first phase in which it has nothing to sum
  Exchange joined;
  for (const SliceSum& sum : slices.sums(static_cast<int>(bucket))) {
    const PlanGroup group{0, slices.groups()[sum.group]};
    std::size_t next = 0;
    for (const int rank : group.ranks) next = std::max(next, free[rank]);
    const Exchange own = all_reduce(cluster, devices_of(group, all), of.algorithm,
                                    sum.elements * static_cast<std::int64_t>(size_of(type)));
    for (const Phase& phase : own) {
      if (next == joined.size()) joined.emplace_back();
      Phase& at = joined[next++];
      at.latency = std::max(at.latency, phase.latency);
      at.steps = std::max(at.steps, phase.steps);
      at.flows.insert(at.flows.end(), phase.flows.begin(), phase.flows.end());
    }
    for (const int rank : group.ranks) free[rank] = next;
  }
  return joined;
}

void add_collectives(const Plan& plan, const Cluster& cluster, StepModel& model) {
  std::vector<DeviceId> all;
  for (const StepRank& rank : model.ranks) all.push_back(rank.device);
  std::map<std::pair<int, std::int64_t>, std::size_t> flows;  // first bucket by flow and bytes
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const PlanBucket& bucket = plan.buckets[b];
    if (plan.stages[at(bucket.stage)].has_unlike_teams()) {
      model.sums.push_back(sum_of_slices(plan, cluster, b, all));
      model.further_sums.emplace_back();
      model.gathers.emplace_back();
      continue;
    }
    const std::vector<PlanGroup> groups = summing_groups(plan, bucket);
    const std::vector<DeviceId> group = devices_of(groups.front(), all);
    const std::int64_t bytes = travelling_bytes_of(plan, bucket, 0);
    model.further_sums.push_back(further_sums(plan, cluster, bucket, groups, all));
    model.gathers.emplace_back();
    if (bucket.is_sharded()) {
      const auto bytes_of_parts = [&](DType type) {
        std::vector<std::int64_t> parts = bucket.parts;
        for (std::int64_t& part : parts) part *= static_cast<std::int64_t>(size_of(type));
        return parts;
      };
      const DType travels = travelling_type(bucket.type, plan.training.wire_type);
      model.sums.push_back(
          reduce_scatter(cluster, group, bucket.algorithm, bytes_of_parts(travels)));
      model.gathers.back() =
          all_gather(cluster, group, bucket.algorithm, bytes_of_parts(bucket.type));
      continue;
    }
    if (bucket.flow < 0) {
      model.sums.push_back(all_reduce(cluster, group, bucket.algorithm, bytes));
      continue;
    }
    const auto [same, added] = flows.try_emplace({bucket.flow, bytes}, b);
    const PlanFlow& flow = plan.flows[static_cast<std::size_t>(bucket.flow)];
    model.sums.push_back(added ? flow_all_reduce(cluster, group, flow, bytes)
                               : Exchange(model.sums[same->second]));
  }
  model.report = report_all_reduce(cluster, all, plan.training.statistics_every);
  if (plan.training.optimizer.clips()) model.norm = norm_all_reduce(cluster, all);
}

}  // namespace

std::vector<std::vector<int>> meeting_ranks(const Plan& plan, const PlanBucket& bucket) {
  const PlanStage& stage = plan.stages[at(bucket.stage)];
  if (stage.has_unlike_teams()) return {stage.all_ranks()};
  std::vector<std::vector<int>> ranks;
  for (PlanGroup& group : summing_groups(plan, bucket)) ranks.push_back(std::move(group.ranks));
  return ranks;
}

const RankTimes& StepModel::times_of(int rank, int stage) const {
  const StepRank& of = ranks[at(rank)];
  return stage < round ? of.times : of.further_times[at(stage / round - 1)];
}

const RankTimes& StepModel::times_of(int rank, const InstructionId& pass) const {
  return times_of(rank, Plan::stage_of_pass(pass, 0));
}

const std::vector<int>& StepModel::channels_of(int rank, InstructionId id) const {
  static const std::vector<int> empty;
  const std::size_t first = id.micro_batch < smaller_from ? 0 : channel_ends.size() / 2;
  const auto& ends =
      channel_ends[first + static_cast<std::size_t>(channel_end_index(id.object, id.opcode))];
  const std::size_t index = at(ranks[at(rank)].place);
  return index < ends.size() ? ends[index] : empty;
}

const Exchange& StepModel::collective_of(int rank, const InstructionId& id) const {
  if (is_of_all_ranks(id.opcode)) return id.opcode == Opcode::kNorm ? norm : report;
  const int member = ranks[at(rank)].member;
  const std::vector<Exchange>& further = further_sums[at(id.object)];
  if (member > 0 && !further.empty()) return further[at(member - 1)];
  return (sums_gradients(id.opcode) ? sums : gathers)[at(id.object)];
}

Result<StepModel> make_step_model(const Plan& plan, const Graph& graph, const Cluster& cluster,
                                  const CostTable& costs) {
  StepModel model;
  model.round = std::max(1, plan.round_size());
  model.rounds = stages_of_each_rank(plan);
  AGPCS_RETURN_IF_ERROR(add_ranks(plan, cluster, model));
  AGPCS_RETURN_IF_ERROR(add_times(plan, graph, cluster, costs, model));
  for (const Program& program : plan.programs) {
    AGPCS_TRY(PrecedenceGraph waits, precedence_graph(plan, program));
    model.programs.push_back(std::move(waits));
  }
  model.micro_batches = static_cast<int>(plan.micro_batches);
  model.smaller_from = static_cast<int>(plan.smaller_from());
  const bool smaller = model.smaller_from < plan.micro_batches;
  model.channel_ends.resize(plan.cuts.size() * (smaller ? 8 : 4));
  ChannelBuilder channels(plan, cluster, model);
  const int cuts = static_cast<int>(plan.cuts.size());
  for (int cut = 0; cut < cuts; ++cut) channels.add_cut(cut, 0);
  for (int cut = 0; cut < cuts && smaller; ++cut) channels.add_cut(cut, model.smaller_from);
  add_collectives(plan, cluster, model);
  return model;
}

TeamPart team_part_of(const StepModel& model, const TimelineEvent& event) {
  const InstructionId& id = event.instruction;
  const RankTimes& times = model.ranks[at(event.rank)].times;
  if (model.ranks[at(event.rank)].team < 0) return {};
  const bool smaller = id.micro_batch >= model.smaller_from;
  const double exchanging = event.exchanging;
  if (id.opcode == Opcode::kForward) {
    return {exchanging, (smaller ? times.in_smaller_forward : times.in_forward).waiting};
  }
  if (id.opcode != Opcode::kBackward) return {};
  const double waiting = (smaller ? times.in_smaller_backward : times.in_backward).waiting;
  const bool last = id.micro_batch + 1 == model.micro_batches;
  return {exchanging, waiting + (last ? times.in_step_end.waiting : 0)};
}

std::string title_of(const Plan& plan, int stage, InstructionId id) {
  std::string title(name_of(id.opcode));
  const auto object = static_cast<std::size_t>(id.object);
  switch (stream_of(id.opcode)) {
    case StreamKind::kCompute:
      title += " " + (id.object < 0 ? names_of_stages(plan, stage)
                                    : plan.stages[static_cast<std::size_t>(id.object)].name);
      break;
    case StreamKind::kSend:
    case StreamKind::kRecv:
      title += " " + plan.cuts[object].name;
      break;
    case StreamKind::kCollective:
      if (id.object >= 0) title += " " + plan.buckets[object].name;
      break;
  }
  if (id.micro_batch >= 0) title += fmt::format(" mb {}", id.micro_batch);
  return title;
}

}  // namespace agpcs
