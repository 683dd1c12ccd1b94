// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/step/teams.h"

#include "ir/base/at.h"
#include "ir/team/member_graph.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>

namespace agpcs {
namespace {

/// About the bytes that an operator of a body takes, for each member.
constexpr std::size_t kBytesOfOperator = 512;
/// About the bytes that a phase of an exchange takes, for each member.
constexpr std::size_t kBytesOfPhase = 256;

/// Returns those tensors of `whole` that the member's graph has, by their names.
std::vector<StageParts::Crossing> crossing_in(
    const std::unordered_map<std::string_view, TensorId>& ids, const Graph& whole,
    const std::vector<StageParts::Crossing>& crossing) {
  std::vector<StageParts::Crossing> own;
  for (const StageParts::Crossing& one : crossing) {
    const auto id = ids.find(whole.tensor(one.tensor).name);
    if (id != ids.end()) own.push_back({id->second, one.gradient});
  }
  return own;
}

/// Returns the first member with pieces of the same size in every division: it has the same memory.
std::size_t first_alike(const TeamBody& body, std::size_t member) {
  for (std::size_t m = 0; m < member; ++m) {
    const bool alike = std::ranges::all_of(body.divisions, [&](const Division& division) {
      return division.range(m, division.of).size() == division.range(member, division.of).size();
    });
    if (alike) return m;
  }
  return member;
}

}  // namespace

TeamInfo& TeamTable::find(StageInfo& stage, const TeamBody& body) {
  for (const std::unique_ptr<TeamInfo>& known : stage.teams) {
    if (known->body == body) return *known;
  }
  TeamInfo& team =
      *stage.teams.emplace_back(std::make_unique<TeamInfo>(problem_, stage, TeamBody(body)));
  team.members.resize(body.members());
  stages_.remember(body.members() * body.ops.size() * kBytesOfOperator);
  return team;
}

const TeamTimes& TeamTable::times(TeamInfo& team, const TeamPlace& place,
                                  const std::vector<TeamPlace>& beside) {
  const auto [known, added] = team.times.try_emplace(TeamKey(place, beside));
  if (added) {
    known->second = team.work.times(problem_.cluster, costs_, place.devices, place.samples, beside);
    stages_.remember(place.devices.size() * team.body.ops.size() * sizeof(double));
  }
  return known->second;
}

const TeamScript& TeamTable::script(TeamInfo& team, const TeamPlace& place, bool alone) {
  const auto [known, added] = team.scripts.try_emplace({place, alone});
  if (added) {
    known->second = team.work.script(problem_.cluster, costs_, place.devices, place.samples, alone);
    stages_.remember(place.devices.size() * team.body.ops.size() * sizeof(double));
    for (const Exchange& exchange : known->second.exchanges) {
      stages_.remember(exchange.size() * place.devices.size() * kBytesOfPhase);
    }
  }
  return known->second;
}

MemberSum TeamTable::sum_of(const TeamInfo& team, const StageInfo::Parameter& parameter,
                            std::size_t member) const {
  const std::int64_t elements = team.work.held(parameter.id)[member];
  const DType travels = travelling_type(parameter.gradient.held, problem_.training.wire_type);
  return {elements, elements * static_cast<std::int64_t>(size_of(travels))};
}

std::int64_t TeamTable::most_bytes(const TeamInfo& team,
                                   const StageInfo::Parameter& parameter) const {
  std::int64_t most = 0;
  for (std::size_t m = 0; m < team.work.members(); ++m) {
    most = std::max(most, sum_of(team, parameter, m).bytes);
  }
  return most;
}

TeamInfo::Member& TeamTable::member_of(TeamInfo& team, const StageInfo& stage, std::size_t member) {
  std::unique_ptr<TeamInfo::Member>& own = team.members[member];
  if (own != nullptr) return *own;
  own = std::make_unique<TeamInfo::Member>();
  own->graph = member_graph(problem_.graph, team.body, member);
  std::unordered_map<std::string_view, TensorId> ids;
  for (TensorId id = 0; id < static_cast<TensorId>(own->graph.tensors.size()); ++id) {
    ids.emplace(own->graph.tensor(id).name, id);
  }
  own->parts.ops.resize(own->graph.ops.size());
  std::iota(own->parts.ops.begin(), own->parts.ops.end(), 0);
  own->parts.received = crossing_in(ids, problem_.graph, stage.parts.received);
  own->parts.sent = crossing_in(ids, problem_.graph, stage.parts.sent);
  own->model = std::make_unique<StageMemoryModel>(own->graph, problem_.training);
  for (const StageInfo::Parameter& parameter : team.parameters) {
    const MemberSum sum = sum_of(team, parameter, member);
    const DType held = parameter.gradient.held;
    own->held_bytes += sum.elements * static_cast<std::int64_t>(size_of(held));
    if (travelling_type(held, problem_.training.wire_type) != held) own->rounded_bytes += sum.bytes;
  }
  stages_.remember(own->graph.ops.size() * kBytesOfOperator);
  return *own;
}

StageMemory TeamTable::memory(TeamInfo& team, const StageInfo& stage, std::size_t member,
                              std::int64_t samples, std::int64_t micro_batches, bool sums) {
  TeamInfo::Member& own = member_of(team, stage, first_alike(team.body, member));
  const auto [known, added] = own.memory.try_emplace(samples);
  if (added) known->second = own.model->of(own.parts, samples);
  StageMemory memory = known->second;
  memory.inputs *= micro_batches;
  memory.gradients = own.held_bytes + (sums ? own.rounded_bytes : 0);
  return memory;
}

StageInfo::Group TeamTable::group(const TeamInfo& team, std::size_t first,
                                  std::size_t count) const {
  StageInfo::Group group;
  std::vector<std::int64_t> bytes(team.work.members());
  for (std::size_t i = first; i < first + count; ++i) {
    group.elements += team.parameters[i].gradient.elements;
    for (std::size_t m = 0; m < bytes.size(); ++m) {
      bytes[m] += sum_of(team, team.parameters[i], m).bytes;
    }
  }
  group.bytes = *std::max_element(bytes.begin(), bytes.end());
  group.tensors = static_cast<std::int64_t>(count);
  group.held = team.parameters[first].gradient.held;
  return group;
}

const StageInfo::Groups& TeamTable::packed(TeamInfo& team, std::int64_t bucket_bytes) {
  const auto [entry, added] = team.packed.try_emplace(bucket_bytes);
  if (!added) return entry->second;
  std::vector<std::int64_t> bytes;
  for (const StageInfo::Parameter& one : team.parameters) bytes.push_back(most_bytes(team, one));
  std::size_t first = 0;
  for (const std::size_t count : packed_counts(team.parameters, bytes, bucket_bytes)) {
    entry->second.push_back(group(team, first, count));
    first += count;
  }
  return entry->second;
}

const StageInfo::Groups& TeamTable::scheduled(TeamInfo& team, const StageSpec& spec,
                                              const std::vector<CostLine>& lines,
                                              std::uint64_t number) {
  const TeamTimes* slowest = nullptr;
  TeamKey key;
  const auto sum = [](const TeamTimes& of) { return of.forward.seconds + of.backward.seconds; };
  const std::vector<TeamPlace> places = places_of_teams(spec);
  const std::vector<std::vector<TeamPlace>> beside = teams_beside(problem_.cluster, places);
  for (std::size_t i = 0; i < places.size(); ++i) {
    TeamKey now(places[i], beside[i]);
    const TeamTimes& own = times(team, now.first, now.second);
    if (slowest != nullptr && sum(own) <= sum(*slowest)) continue;
    slowest = &own;
    key = std::move(now);
  }
  const auto [entry, added] = team.scheduled.try_emplace({std::move(key), number});
  if (!added) return entry->second;
  std::vector<ReadyGradient> gradients;
  for (const StageInfo::Parameter& parameter : team.parameters) {
    gradients.push_back({slowest->gradients(), most_bytes(team, parameter),
                         static_cast<int>(parameter.gradient.held)});
  }
  std::size_t first = 0;
  for (const int count : schedule_buckets(gradients, lines)) {
    entry->second.push_back(group(team, first, at(count)));
    first += at(count);
  }
  return entry->second;
}

}  // namespace agpcs
