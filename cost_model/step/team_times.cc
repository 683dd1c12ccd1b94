// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/team_times.h"

#include "cost_model/step/team_traffic.h"
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

}  // namespace

double exchange_seconds(const TeamTimes& larger, const TeamTimes& smaller,
                        std::int64_t micro_batches, std::int64_t smaller_from) {
  const auto of_pass = [](const TeamTimes& times) {
    return times.forward.exchange + times.backward.exchange;
  };
  return static_cast<double>(smaller_from) * of_pass(larger) +
         static_cast<double>(micro_batches - smaller_from) * of_pass(smaller) +
         larger.step_end.exchange;
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

/// Adds up a pass: members run on their own until they meet.
class TeamWork::Clock {
 public:
  /// `beside`: the collectives of the same pass of each team that shares links.
  Clock(const Cluster& cluster, const std::vector<DeviceId>& devices,
        std::vector<std::vector<Exchange>> beside)
      : cluster_(cluster), devices_(devices), beside_(std::move(beside)), run_(devices.size()) {
    pass_.computing.resize(devices.size());
    for (const DeviceId device : devices) {
      overhead_ = std::max(overhead_, cluster.kind_of(device).message_overhead);
    }
  }

  void compute(std::size_t member, double seconds) {
    run_[member] += seconds;
    pass_.computing[member] += seconds;
  }
  void meet() {
    pass_.seconds += *std::max_element(run_.begin(), run_.end());
    std::fill(run_.begin(), run_.end(), 0);
  }
  void exchange(const TeamTraffic& traffic) {
    for (std::size_t m = 0; m < devices_.size(); ++m) {
      compute(m, copy_seconds(cluster_, devices_[m], m, traffic));
    }
    if (!is_collective(traffic.exchange)) return;
    meet();
    std::vector<const Exchange*> others;
    for (const std::vector<Exchange>& other : beside_) others.push_back(&other[collective_]);
    ++collective_;
    const double seconds =
        overhead_ + seconds_beside(cluster_, team_exchange(cluster_, devices_, traffic), others);
    pass_.seconds += seconds;
    pass_.exchange += seconds;
  }
  TeamPassSeconds end() {
    meet();
    return std::move(pass_);
  }

 private:
  const Cluster& cluster_;
  const std::vector<DeviceId>& devices_;
  const std::vector<std::vector<Exchange>> beside_;  // by team, then collective
  std::size_t collective_ = 0;                       // the next one
  double overhead_ = 0;
  std::vector<double> run_;  // by member: seconds since they met
  TeamPassSeconds pass_;
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

TeamTimes TeamWork::times(const Cluster& cluster, MemberCosts& costs,
                          const std::vector<DeviceId>& devices, std::int64_t samples,
                          const std::vector<TeamPlace>& beside) const {
  for (const std::vector<MemberOp>& ops : ops_) costs.prepare(ops);
  std::vector<int> kinds;
  for (const DeviceId device : devices) kinds.push_back(cluster.devices[at(device)].kind);
  TeamTimes times;
  std::vector<std::vector<OpSeconds>> seconds(members());
  for (std::size_t m = 0; m < members(); ++m) {
    for (const MemberOp& op : ops_[m]) seconds[m].push_back(costs.seconds(kinds[m], op, samples));
  }
  std::vector<std::vector<Exchange>> in_forward, in_backward, at_end;
  for (const TeamPlace& other : beside) {
    in_forward.push_back(exchanges(cluster, other.devices, other.samples, true));
    in_backward.push_back(exchanges(cluster, other.devices, other.samples, false));
    at_end.push_back(step_end_exchanges(cluster, other.devices));
  }
  Clock forward(cluster, devices, std::move(in_forward));
  Clock backward(cluster, devices, std::move(in_backward));
  Clock end(cluster, devices, std::move(at_end));
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
  times.forward = forward.end();
  times.backward = backward.end();
  times.step_end = end.end();
  return times;
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
