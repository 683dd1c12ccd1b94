// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/team/times.h"

#include "cost_model/step/team/traffic.h"
#include "ir/base/at.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace agpcs {
namespace {

/// Returns the links that exchanges of a team may cross; none of a team within a host.
std::set<LinkId> links_of(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  std::set<LinkId> links;
  const int host = cluster.devices[at(devices[0])].host;
  if (std::ranges::all_of(devices,
                          [&](DeviceId id) { return cluster.devices[at(id)].host == host; })) {
    return links;
  }
  std::vector<LinkId> route;
  for (const DeviceId from : devices) {
    for (const DeviceId to : devices) {
      if (from != to) cluster.append_route(from, to, route);
    }
  }
  links.insert(route.begin(), route.end());
  return links;
}

/// Returns the elements that each member holds of a tensor that lies so.
std::vector<std::int64_t> elements_of_members(const TeamBody& body, const TeamPlacement& placement,
                                              std::int64_t elements) {
  std::vector<std::int64_t> all(body.members(), elements);
  if (placement.kind != Placement::Kind::kPart) return all;
  const Division& division = body.divisions[at(placement.division)];
  for (std::size_t m = 0; m < all.size(); ++m) {
    all[m] = elements / division.of * division.range(m, division.of).size();
  }
  return all;
}

double overhead_of(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  double overhead = 0;
  for (const DeviceId device : devices) {
    overhead = std::max(overhead, cluster.kind_of(device).message_overhead);
  }
  return overhead;
}

}  // namespace

TeamScript TeamScript::settled(const std::vector<double>& lone) const {
  const auto of = [&](const Pass& pass) {
    Pass alone;
    alone.least = pass.least;
    for (const Meeting& meeting : pass.meetings) {
      alone.exchanged += lone[at(meeting.exchange)];
      alone.after += meeting.before;
      alone.after += lone[at(meeting.exchange)];
    }
    alone.after += pass.after;
    return alone;
  };
  return {of(forward), of(backward), of(step_end), {}};
}

std::vector<TeamPlace> places_of_teams(const StageSpec& spec) {
  std::vector<TeamPlace> places;
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    places.push_back({members_of(spec, i), spec.shares[i]});
  }
  return places;
}

std::vector<std::vector<TeamPlace>> teams_beside(const Cluster& cluster,
                                                 const std::vector<TeamPlace>& teams) {
  std::map<LinkId, std::vector<std::size_t>> teams_of;
  for (std::size_t t = 0; t < teams.size(); ++t) {
    for (const LinkId link : links_of(cluster, teams[t].devices)) teams_of[link].push_back(t);
  }
  std::vector<std::set<std::size_t>> beside(teams.size());
  for (const auto& [link, sharing] : teams_of) {
    if (sharing.size() < 2) continue;
    for (const std::size_t t : sharing) beside[t].insert(sharing.begin(), sharing.end());
  }
  std::vector<std::vector<TeamPlace>> places(teams.size());
  for (std::size_t t = 0; t < teams.size(); ++t) {
    for (const std::size_t other : beside[t]) {
      if (other != t) places[t].push_back(teams[other]);
    }
  }
  return places;
}

/// The passes of a team, and what each member computes in them.
struct TeamWork::Recorded {
  TeamScript script;  // without `least`
  struct Computing {
    std::vector<double> forward, backward, step_end;  // seconds, by member
  } computing;
};

/// Writes down a pass: members run on their own until they meet.
class TeamWork::Recorder {
 public:
  Recorder(const Cluster& cluster, const std::vector<DeviceId>& devices,
           std::map<TeamTraffic, int>& numbers, TeamScript& script)
      : cluster_(cluster),
        devices_(devices),
        numbers_(numbers),
        script_(script),
        run_(devices.size()),
        computing_(devices.size()) {}

  void compute(std::size_t member, double seconds) {
    run_[member] += seconds;
    computing_[member] += seconds;
  }
  void exchange(const TeamTraffic& traffic) {
    for (std::size_t m = 0; m < devices_.size(); ++m) {
      compute(m, copy_seconds(cluster_, devices_[m], m, traffic));
    }
    if (!is_collective(traffic.exchange)) return;
    const auto [number, added] = numbers_.try_emplace(traffic, static_cast<int>(numbers_.size()));
    if (added) script_.exchanges.push_back(team_exchange(cluster_, devices_, traffic));
    pass_.meetings.push_back({slowest(), number->second});
  }
  void end(TeamScript::Pass& pass, std::vector<double>& computing) {
    pass_.after = slowest();
    pass = std::move(pass_);
    computing = std::move(computing_);
  }

 private:
  double slowest() {
    const double seconds = *std::max_element(run_.begin(), run_.end());
    std::fill(run_.begin(), run_.end(), 0);
    return seconds;
  }

  const Cluster& cluster_;
  const std::vector<DeviceId>& devices_;
  std::map<TeamTraffic, int>& numbers_;  // of `script_.exchanges`
  TeamScript& script_;
  std::vector<double> run_;  // by member: seconds since they met
  std::vector<double> computing_;
  TeamScript::Pass pass_;
};

TeamWork::TeamWork(const Graph& graph, const TeamBody& body, Precision precision)
    : graph_(graph), body_(body), precision_(precision), units_(body.ops.size()) {
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    if (body.ops[i].split == kNone) continue;
    OpSplit split = splits_of(graph, body.ops[i].op)[at(body.ops[i].split)];
    units_[i] = split.units;
    if (!split.inside.empty()) inside_.emplace(i, std::move(split));
  }
  find_parts();
  find_held();
}

TeamWork::TeamWork(const TeamWork& like, const TeamBody& body)
    : graph_(like.graph_),
      body_(body),
      precision_(like.precision_),
      units_(like.units_),
      inside_(like.inside_) {
  find_parts();
  find_held();
}

void TeamWork::find_parts() {
  ops_.resize(members());
  for (std::size_t m = 0; m < members(); ++m) {
    for (std::size_t i = 0; i < body_.ops.size(); ++i) {
      const TeamOp& op = body_.ops[i];
      ops_[m].push_back(
          op.division == kNone
              ? MemberOp{op.op, kNone, 0}
              : MemberOp{op.op, op.split,
                         body_.divisions[at(op.division)].range(m, units_[i]).size()});
    }
  }
}

void TeamWork::find_held() {
  for (const TeamForm& form : body_.forms) {
    const Tensor& tensor = graph_.tensor(form.tensor);
    if (tensor.kind != TensorKind::kParameter || !tensor.needs_gradient) continue;
    // The first form is the one that it begins in.
    held_.try_emplace(form.tensor,
                      elements_of_members(body_, form.placement, elements_at(tensor.shape, 1)));
  }
}

std::vector<std::int64_t> TeamWork::held_elements() const {
  std::vector<std::int64_t> all(members());
  for (const auto& [parameter, held] : held_) {
    for (std::size_t m = 0; m < all.size(); ++m) all[m] += held[m];
  }
  return all;
}

/// Calls `operators(i)` for each operator of a pass, by its index in the body, and
/// `exchange(TeamTraffic)` for each exchange, in their order.
template <typename Operators, typename Exchanges>
void TeamWork::walk(bool forward, std::int64_t samples, Operators operators,
                    Exchanges exchange) const {
  const auto within = [&](std::size_t op) {
    const auto inside = inside_.find(op);
    if (!forward || inside == inside_.end()) return;
    for (const TeamTraffic& traffic :
         inside_traffic(graph_, body_.ops[op].op, inside->second, samples, members())) {
      exchange(traffic);
    }
  };
  for (const TeamStep& step : forward ? body_.forward : body_.backward) {
    if (step.form != kNone) {
      exchange(forward ? forward_traffic(graph_, body_, step.form, samples, precision_)
                       : backward_traffic(graph_, body_, step.form, samples, precision_));
      continue;
    }
    for (int i = step.first; i <= step.last; ++i) {
      const std::size_t op = at(forward ? i : step.last - (i - step.first));
      operators(op);
      within(op);
    }
  }
}

TeamWork::Recorded TeamWork::record(const Cluster& cluster, MemberCosts& costs,
                                    const std::vector<DeviceId>& devices,
                                    std::int64_t samples) const {
  for (const std::vector<MemberOp>& ops : ops_) costs.prepare(ops);
  std::vector<int> kinds;
  for (const DeviceId device : devices) kinds.push_back(cluster.devices[at(device)].kind);
  std::vector<std::vector<OpSeconds>> seconds(members());
  for (std::size_t m = 0; m < members(); ++m) {
    for (const MemberOp& op : ops_[m]) seconds[m].push_back(costs.seconds(kinds[m], op, samples));
  }
  Recorded recorded;
  std::map<TeamTraffic, int> numbers;
  Recorder forward(cluster, devices, numbers, recorded.script);
  Recorder backward(cluster, devices, numbers, recorded.script);
  Recorder end(cluster, devices, numbers, recorded.script);
  walk(
      true, samples,
      [&](std::size_t op) {
        for (std::size_t m = 0; m < members(); ++m) forward.compute(m, seconds[m][op].forward);
      },
      [&](const TeamTraffic& traffic) { forward.exchange(traffic); });
  walk(
      false, samples,
      [&](std::size_t op) {
        for (std::size_t m = 0; m < members(); ++m) backward.compute(m, seconds[m][op].backward);
      },
      [&](const TeamTraffic& traffic) { backward.exchange(traffic); });
  for (const TeamStep& step : body_.step_end) {
    end.exchange(backward_traffic(graph_, body_, step.form, 1, precision_));
  }
  forward.end(recorded.script.forward, recorded.computing.forward);
  backward.end(recorded.script.backward, recorded.computing.backward);
  end.end(recorded.script.step_end, recorded.computing.step_end);
  return recorded;
}

TeamTimes TeamWork::times(const Cluster& cluster, MemberCosts& costs,
                          const std::vector<DeviceId>& devices, std::int64_t samples,
                          const std::vector<TeamPlace>& beside) const {
  Recorded recorded = record(cluster, costs, devices, samples);
  const double overhead = overhead_of(cluster, devices);
  // `of_others`: by team beside, its collectives of the same pass.
  const auto timed = [&](const TeamScript::Pass& pass, std::vector<double>& computing,
                         const std::vector<std::vector<Exchange>>& of_others) {
    TeamPassSeconds sum;
    for (std::size_t i = 0; i < pass.meetings.size(); ++i) {
      std::vector<const Exchange*> others;
      for (const std::vector<Exchange>& other : of_others) others.push_back(&other[i]);
      const Exchange& exchange = recorded.script.exchanges[at(pass.meetings[i].exchange)];
      const double seconds = overhead + seconds_beside(cluster, exchange, others);
      sum.seconds += pass.meetings[i].before;
      sum.seconds += seconds;
      sum.exchange += seconds;
    }
    sum.seconds += pass.after;
    sum.computing = std::move(computing);
    return sum;
  };
  std::vector<std::vector<Exchange>> in_forward, in_backward, at_end;
  for (const TeamPlace& other : beside) {
    in_forward.push_back(exchanges(cluster, other.devices, other.samples, true));
    in_backward.push_back(exchanges(cluster, other.devices, other.samples, false));
    at_end.push_back(step_end_exchanges(cluster, other.devices));
  }
  TeamTimes times;
  times.forward = timed(recorded.script.forward, recorded.computing.forward, in_forward);
  times.backward = timed(recorded.script.backward, recorded.computing.backward, in_backward);
  times.step_end = timed(recorded.script.step_end, recorded.computing.step_end, at_end);
  return times;
}

TeamScript TeamWork::script(const Cluster& cluster, MemberCosts& costs,
                            const std::vector<DeviceId>& devices, std::int64_t samples,
                            bool alone) const {
  TeamScript script = record(cluster, costs, devices, samples).script;
  const double overhead = overhead_of(cluster, devices);
  std::vector<double> least, lone;
  for (const Exchange& exchange : script.exchanges) {
    least.push_back(overhead + least_seconds(cluster, exchange));
    lone.push_back(overhead + lone_seconds(cluster, exchange));
  }
  for (TeamScript::Pass* const pass : {&script.forward, &script.backward, &script.step_end}) {
    pass->least = pass->after;
    for (const TeamScript::Meeting& meeting : pass->meetings) {
      pass->least += meeting.before + least[at(meeting.exchange)];
    }
  }
  return alone ? script.settled(lone) : script;
}

std::vector<Exchange> TeamWork::exchanges(const Cluster& cluster,
                                          const std::vector<DeviceId>& devices,
                                          std::int64_t samples, bool forward) const {
  std::vector<Exchange> all;
  walk(
      forward, samples, [](std::size_t) {},
      [&](const TeamTraffic& traffic) {
        if (is_collective(traffic.exchange)) {
          all.push_back(team_exchange(cluster, devices, traffic));
        }
      });
  return all;
}

std::vector<Exchange> TeamWork::step_end_exchanges(const Cluster& cluster,
                                                   const std::vector<DeviceId>& devices) const {
  std::vector<Exchange> all;
  for (const TeamStep& step : body_.step_end) {
    const TeamTraffic traffic = backward_traffic(graph_, body_, step.form, 1, precision_);
    if (is_collective(traffic.exchange)) all.push_back(team_exchange(cluster, devices, traffic));
  }
  return all;
}

}  // namespace agpcs
