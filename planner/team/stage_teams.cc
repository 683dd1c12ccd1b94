// SPDX-License-Identifier: Apache-2.0
#include "planner/team/stage_teams.h"

#include "cost_model/network/link_model.h"
#include "cost_model/step/team/times.h"
#include "cost_model/step/team/traffic.h"
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/graph/op_table.h"
#include "ir/strategy/state_parts.h"
#include "planner/problem/shares.h"
#include "planner/team/choose.h"

#include <agpcs/plan.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

namespace agpcs {
namespace {

/// States at a place of which none is dropped. Choices for searches are many.
constexpr std::size_t kMostStagesStates = 8;
/// The largest part of a member; others are rounded to whole ones.
constexpr double kLargestPart = 100;
/// Bodies that are chosen on the way of a climb.
constexpr int kMostChoicesOfAClimb = 12;
constexpr std::int64_t kSmallSum = 4096, kLargeSum = std::int64_t{1} << 26;

/// Returns the power of four that is nearest, in proportion.
std::int64_t rounded(std::int64_t number) {
  std::int64_t power = 1;
  while (4 * power <= number) power *= 4;
  return number > 2 * power ? 4 * power : power;
}

std::vector<DeviceId> in_ascending_order(std::vector<DeviceId> devices) {
  std::ranges::sort(devices);
  return devices;
}

int kind_of(const Problem& problem, DeviceId device) {
  return problem.cluster.devices[at(device)].kind;
}

/// Returns the elements of the trained parameters that operators read; at least one.
std::int64_t trained_elements(const Graph& graph, const std::vector<OpId>& ops) {
  std::set<TensorId> read;
  for (const OpId op : ops) {
    for (const TensorId id : graph.op(op).inputs) {
      if (id != kNone && graph.tensor(id).kind == TensorKind::kParameter) read.insert(id);
    }
  }
  std::int64_t elements = 1;
  for (const TensorId id : read) elements += elements_at(graph.tensor(id).shape, 1);
  return elements;
}

}  // namespace

StageTeams::Look StageTeams::look_of(const Team& team) const {
  Look look;
  for (const DeviceId id : team) look.kinds.push_back(kind_of(problem_, id));
  const Team ranked = in_ascending_order(team);
  for (const std::int64_t bytes : {kSmallSum, kLargeSum}) {
    look.links.push_back(lone_seconds(
        problem_.cluster, all_reduce(problem_.cluster, ranked, AllReduce::kRing, bytes)));
  }
  return look;
}

double StageTeams::alone_seconds(const std::vector<OpId>& ops, int kind,
                                 std::int64_t samples) const {
  double seconds = 0;
  for (const OpId op : ops) seconds += problem_.costs.seconds(kind, op, samples).sum();
  return seconds;
}

double StageTeams::bytes_of_element() const {
  return static_cast<double>(2 * element_bytes(DType::kFp32, problem_.training.precision) +
                             static_cast<std::size_t>(state_bytes(problem_.training)));
}

bool StageTeams::has_room_for_all(const TeamOrder& order) const {
  const auto elements = static_cast<double>(trained_elements(problem_.graph, order.ops));
  const double element = bytes_of_element();
  return std::ranges::all_of(order.teams, [&](const Team& team) {
    return std::ranges::all_of(team, [&](DeviceId id) {
      return elements * element <= static_cast<double>(problem_.cluster.kind_of(id).memory_bytes);
    });
  });
}

void StageTeams::put_in_order(TeamOrder& order) const {
  std::map<int, double> alone;
  const auto seconds = [&](DeviceId id) {
    const auto [known, added] = alone.try_emplace(kind_of(problem_, id), 0);
    if (added) known->second = alone_seconds(order.ops, known->first, 1);
    return known->second;
  };
  std::vector<std::pair<Team, double>> teams;
  for (std::size_t t = 0; t < order.teams.size(); ++t) {
    Team& team = order.teams[t];
    if (order.parts.empty()) {  // otherwise they are said of these members
      std::ranges::sort(team, {}, [&](DeviceId id) { return std::pair(seconds(id), id); });
    }
    teams.emplace_back(std::move(team), order.weights.empty() ? 0 : order.weights[t]);
  }
  std::ranges::sort(teams, {}, [](const auto& team) { return team.first[0]; });
  for (std::size_t t = 0; t < teams.size(); ++t) {
    order.teams[t] = std::move(teams[t].first);
    if (!order.weights.empty()) order.weights[t] = teams[t].second;
  }
}

TeamParts StageTeams::parts_by_speed(const TeamOrder& order, std::int64_t samples) const {
  std::map<int, double> alone;
  std::vector<double> slowest(order.teams[0].size());  // by number of the member
  for (const Team& team : order.teams) {
    for (std::size_t m = 0; m < team.size(); ++m) {
      const int kind = kind_of(problem_, team[m]);
      const auto [known, added] = alone.try_emplace(kind, 0);
      if (added) known->second = alone_seconds(order.ops, kind, samples);
      slowest[m] = std::max(slowest[m], known->second);
    }
  }
  const double least = *std::ranges::min_element(slowest);
  TeamParts parts;
  for (const double seconds : slowest) {
    const double part = seconds > 0 ? kLargestPart * least / seconds : kLargestPart;
    parts.push_back(std::max<std::int64_t>(1, std::llround(part)));
  }
  return in_lowest_terms(std::move(parts));
}

TeamProblem StageTeams::problem_of(const TeamOrder& order, const StageContent& content,
                                   std::int64_t samples, TeamParts parts,
                                   std::vector<Team> unlike) {
  TeamProblem problem{problem_.graph,
                      order.ops,
                      std::move(parts),
                      samples,
                      order.micro_batches,
                      problem_.training.precision,
                      {}};
  problem.alike = content.signatures;
  const Cluster& cluster = problem_.cluster;
  std::vector<std::vector<int>> kinds(unlike[0].size());  // by number of the member, each once
  for (const Team& team : unlike) {
    for (std::size_t m = 0; m < team.size(); ++m) {
      const int kind = kind_of(problem_, team[m]);
      if (std::ranges::find(kinds[m], kind) == kinds[m].end()) kinds[m].push_back(kind);
    }
  }
  problem.costs.compute = [this, kinds = std::move(kinds), samples](const MemberOp& of,
                                                                    std::size_t member, double) {
    double slowest = 0;
    for (const int kind : kinds[member]) {
      slowest = std::max(slowest, costs_.seconds(kind, of, samples).sum());
    }
    return slowest;
  };
  problem.costs.exchange =
      [&cluster, unlike = std::move(unlike),
       known = std::map<TeamTraffic, double>()](const TeamTraffic& traffic) mutable {
        const auto [entry, added] = known.try_emplace(traffic, 0);
        if (!added) return entry->second;
        for (const Team& team : unlike) {
          entry->second = std::max(entry->second, lone_seconds(cluster, team, traffic));
        }
        return entry->second;
      };
  problem.costs.prepare = [this](std::span<const MemberOp> asked) { costs_.prepare(asked); };
  return problem;
}

StageTeams::Key StageTeams::key_of(const TeamOrder& order, const StageContent& content,
                                   std::int64_t samples, const TeamParts& parts,
                                   const std::vector<Team>& unlike) const {
  std::vector<Look> looks;
  for (const Team& team : unlike) looks.push_back(look_of(team));
  return {content.key,       std::move(looks), parts, samples, rounded(order.micro_batches),
          order.spare_memory};
}

const StageTeams::Chosen& StageTeams::choose(const TeamOrder& order, const StageContent& content,
                                             std::int64_t samples, const TeamParts& parts,
                                             const std::vector<Team>& unlike) {
  const auto [known, added] = chosen_.try_emplace(key_of(order, content, samples, parts, unlike));
  if (!added) return known->second;
  TeamProblem problem = problem_of(order, content, samples, parts, unlike);
  problem.micro_batches = rounded(order.micro_batches);
  if (order.spare_memory) {
    const double alone = alone_seconds(order.ops, kind_of(problem_, unlike[0][0]), samples);
    problem.held_element = alone / static_cast<double>(trained_elements(problem_.graph, order.ops));
  }
  Result<TeamChoice> choice = choose_team_body(problem, kMostStagesStates);
  AGPCS_CHECK(choice.ok(), "{}", choice.status().message());
  const auto number = static_cast<int>(chosen_.size());
  known->second = {number, content, std::move(choice->body), choice->exact};
  return known->second;
}

/// What parts cost: the seconds of both passes, and those of the end of a step by micro-batches. Of
/// unlike teams, the slowest counts. Where parameters do not fit, the bytes that lack count more.
class StageTeams::PartsCost {
 public:
  PartsCost(StageTeams& of, const TeamOrder& order, std::int64_t samples,
            const std::vector<Team>& unlike)
      : of_(of), order_(order), samples_(samples), unlike_(unlike) {
    // Members of the same kinds in all teams are of one class.
    std::map<std::vector<int>, int> known;
    for (std::size_t m = 0; m < unlike[0].size(); ++m) {
      std::vector<int> kinds;
      for (const Team& team : unlike) kinds.push_back(kind_of(of.problem_, team[m]));
      classes_.push_back(known.try_emplace(kinds, static_cast<int>(known.size())).first->second);
    }
  }

  /// Returns whether all members are of the same kinds.
  bool members_are_alike() const {
    return std::ranges::all_of(classes_, [](int of) { return of == 0; });
  }

  double of(const TeamWork& work) const {
    constexpr double kWorseThanAnySeconds = 1e12;
    const std::vector<std::int64_t> held = work.held_elements();
    const double element = of_.bytes_of_element();
    double slowest = 0, lacking = 0;
    for (const Team& team : unlike_) {
      for (std::size_t m = 0; m < team.size(); ++m) {
        const auto room = static_cast<double>(of_.problem_.cluster.kind_of(team[m]).memory_bytes);
        lacking = std::max(lacking, static_cast<double>(held[m]) * element - room);
      }
      const TeamTimes times = work.times(of_.problem_.cluster, of_.costs_, team, samples_);
      slowest = std::max(
          slowest, times.forward.seconds + times.backward.seconds +
                       times.step_end.seconds / static_cast<double>(rounded(order_.micro_batches)));
    }
    return lacking > 0 ? kWorseThanAnySeconds + lacking : slowest;
  }

  /// Returns the best parts for the splits that a body has.
  TeamParts best_of(const TeamBody& body, const TeamWork& work) const {
    const OtherParts other(of_.problem_.graph, body);
    return climb(body.parts, [&](const TeamParts& parts) {
      const std::optional<TeamBody> changed = other.with(parts);
      return changed ? of(TeamWork(work, *changed)) : kNeverSeconds;
    });
  }
  TeamParts climb(const TeamParts& start, const std::function<double(const TeamParts&)>& cost,
                  int most = 40) const {
    return climb_parts(start, classes_, cost, most);
  }

 private:
  StageTeams& of_;
  const TeamOrder& order_;
  std::int64_t samples_;
  const std::vector<Team>& unlike_;
  std::vector<int> classes_;  // by number of the member
};

const StageTeams::Chosen& StageTeams::choose_parts(const TeamOrder& order,
                                                   const StageContent& content,
                                                   std::int64_t samples,
                                                   const std::vector<Team>& unlike) {
  const PartsCost cost(*this, order, samples, unlike);
  const TeamParts even(unlike[0].size(), 1);
  if (cost.members_are_alike()) return choose(order, content, samples, even, unlike);
  const auto [known, added] =
      parts_.try_emplace({key_of(order, content, samples, {}, unlike), order.quick});
  if (!added) return choose(order, content, samples, known->second, unlike);
  const Chosen* best = nullptr;
  double least = 0;
  const auto consider = [&](const TeamParts& parts) {
    const Chosen& other = choose(order, content, samples, parts, unlike);
    const double seconds =
        cost.of(TeamWork(problem_.graph, other.body, problem_.training.precision));
    if (best != nullptr && seconds >= least) return false;
    best = &other;
    least = seconds;
    return true;
  };
  consider(parts_by_speed(order, samples));
  consider(even);
  const auto climb_with_same_splits = [&] {
    const TeamWork work(problem_.graph, best->body, problem_.training.precision);
    const TeamParts parts = cost.best_of(best->body, work);
    if (parts != best->body.parts) consider(parts);
  };
  climb_with_same_splits();
  if (!order.quick) {
    const TeamParts start = best->body.parts;
    cost.climb(
        start,
        [&](const TeamParts& parts) {
          if (parts == start || consider(parts)) return least;
          return kNeverSeconds;
        },
        kMostChoicesOfAClimb);
    climb_with_same_splits();
  }
  known->second = best->body.parts;
  return *best;
}

/// The seconds of teams that have one body, by their number and samples.
class StageTeams::Timer {
 public:
  Timer(StageTeams& of, const TeamOrder& order, const StageContent& content, int number,
        const TeamBody& body)
      : of_(of), order_(order), content_(content), number_(number), body_(body) {
    for (const Team& team : order.teams) looks_.push_back(of.look_of(team));
  }

  double seconds(std::size_t team, std::int64_t samples) {
    const auto [known, added] = of_.seconds_.try_emplace({number_, looks_[team], samples}, 0);
    if (added) {
      const TeamSeconds seconds = team_seconds(
          of_.problem_of(order_, content_, samples, body_.parts, {order_.teams[team]}), body_);
      known->second = seconds.compute + seconds.exchange;
    }
    return known->second;
  }
  bool alike() const {
    return std::ranges::all_of(looks_, [&](const Look& look) { return look == looks_[0]; });
  }

 private:
  StageTeams& of_;
  const TeamOrder& order_;
  const StageContent& content_;
  int number_;
  const TeamBody& body_;
  std::vector<Look> looks_;
};

void level_shares(std::vector<std::int64_t>& shares, std::int64_t least, std::int64_t moves,
                  const std::function<double(std::size_t, std::int64_t)>& seconds) {
  for (; moves > 0; --moves) {
    std::size_t slowest = 0, target = 0;
    for (std::size_t t = 1; t < shares.size(); ++t) {
      if (seconds(t, shares[t]) > seconds(slowest, shares[slowest])) slowest = t;
      if (seconds(t, shares[t] + 1) < seconds(target, shares[target] + 1)) target = t;
    }
    if (shares[slowest] <= least) return;
    if (seconds(target, shares[target] + 1) >= seconds(slowest, shares[slowest])) return;
    --shares[slowest];
    ++shares[target];
  }
}

std::vector<std::int64_t> StageTeams::shares_of(Timer& timer, const TeamOrder& order,
                                                std::int64_t samples) {
  if (!order.weights.empty()) return largest_remainder(samples, order.weights);
  const std::size_t teams = order.teams.size();
  std::vector<double> speeds(teams, 1);
  std::vector<std::int64_t> shares = largest_remainder(samples, speeds);
  if (timer.alike()) return shares;
  for (int round = 0; round < 2; ++round) {  // the speed depends on the share
    for (std::size_t t = 0; t < teams; ++t) {
      const std::int64_t share = std::max<std::int64_t>(1, shares[t]);
      speeds[t] = static_cast<double>(share) / timer.seconds(t, share);
    }
    shares = largest_remainder(samples, speeds);
  }
  const auto seconds = [&](std::size_t t, std::int64_t share) {
    return share == 0 ? 0 : timer.seconds(t, share);
  };
  level_shares(shares, 0, 4 * static_cast<std::int64_t>(teams), seconds);
  return shares;
}

std::optional<FormedStage> StageTeams::make(TeamOrder order) {
  put_in_order(order);
  order.spare_memory = order.spare_memory || !has_room_for_all(order);
  const std::vector<Team>& teams = order.teams;
  const std::int64_t samples =
      order.samples > 0 ? order.samples : largest_micro_batch(problem_, order.micro_batches);
  const auto count = static_cast<std::int64_t>(teams.size());
  if (samples < count) return std::nullopt;
  const std::int64_t each = rounded((samples + count - 1) / count);
  std::map<Look, Team> by_look;
  for (const Team& team : teams) by_look.try_emplace(look_of(team), team);
  std::vector<Team> unlike;
  for (const auto& [look, team] : by_look) unlike.push_back(team);
  const StageContent content = contents_.of(order.ops);
  const Chosen* const chosen = order.parts.empty()
                                   ? &choose_parts(order, content, each, unlike)
                                   : &choose(order, content, each, order.parts, unlike);
  FormedStage stage;
  stage.body = body_of_like(problem_.graph, chosen->body, chosen->content, order.ops, content);
  stage.exact = chosen->exact;
  Timer timer(*this, order, content, chosen->number, stage.body);
  stage.spec.shares = shares_of(timer, order, samples);
  const bool smaller = problem_.training.batch % order.micro_batches != 0;
  double odd = -1;
  for (std::size_t t = 0; t < teams.size(); ++t) {
    const std::int64_t share = stage.spec.shares[t];
    if (share == 0) return std::nullopt;
    if (smaller && share > 1) {
      const double seconds = timer.alike() ? static_cast<double>(share) : timer.seconds(t, share);
      if (seconds > odd) stage.spec.odd = teams[t][0];
      odd = std::max(odd, seconds);
    }
    stage.spec.devices.push_back(teams[t][0]);
    stage.spec.further.emplace_back(teams[t].begin() + 1, teams[t].end());
  }
  if (smaller && odd < 0) return std::nullopt;
  return stage;
}

double StageTeams::seconds(const TeamOrder& order, const FormedStage& stage) {
  const StageContent content = contents_.of(order.ops);
  double slowest = 0;
  for (std::size_t t = 0; t < stage.spec.devices.size(); ++t) {
    Team team = {stage.spec.devices[t]};
    team.insert(team.end(), stage.spec.further[t].begin(), stage.spec.further[t].end());
    const TeamProblem problem =
        problem_of(order, content, stage.spec.shares[t], stage.body.parts, {std::move(team)});
    const TeamSeconds seconds = team_seconds(problem, stage.body);
    slowest = std::max(slowest, seconds.compute + seconds.exchange);
  }
  return slowest;
}

std::vector<std::vector<DeviceId>> teams_within_hosts(const Cluster& cluster,
                                                      const std::vector<DeviceId>& devices,
                                                      std::size_t degree) {
  const bool hosts_have_teams =
      std::ranges::any_of(cluster.hosts, [](const Host& host) { return host.device_count > 1; });
  std::vector<std::vector<DeviceId>> teams;
  std::map<int, std::map<int, std::vector<DeviceId>>> left;  // by host, then kind
  for (const DeviceId id : devices) {
    const Device& device = cluster.devices[at(id)];
    std::vector<DeviceId>& alike = left[hosts_have_teams ? device.host : 0][device.kind];
    alike.push_back(id);
    if (alike.size() == degree) teams.push_back(std::exchange(alike, {}));
  }
  for (const auto& [host, kinds] : left) {
    std::vector<DeviceId> mixed;
    for (const auto& [kind, rest] : kinds) {
      for (const DeviceId id : rest) {
        mixed.push_back(id);
        if (mixed.size() == degree) teams.push_back(std::exchange(mixed, {}));
      }
    }
  }
  return teams;
}

}  // namespace agpcs
