// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/rough/teams.h"

#include "ir/base/at.h"
#include "ir/strategy/teams.h"
#include "planner/evaluate/rough/step.h"

#include <algorithm>
#include <set>

namespace agpcs {
namespace {

/// About the most bytes that are remembered; beyond, all are forgotten.
constexpr std::size_t kMostBytes = std::size_t{1} << 26;
/// About the bytes that an operator of a body takes, for each member.
constexpr std::size_t kBytesOfRoughOperator = 256;

/// Returns how much of the trained elements the member has that has most.
double most_held_of(const Graph& graph, const TeamBody& body, const TeamWork& work) {
  std::set<TensorId> parameters;
  for (const TeamForm& form : body.forms) {
    const Tensor& tensor = graph.tensor(form.tensor);
    if (tensor.kind == TensorKind::kParameter && tensor.needs_gradient) {
      parameters.insert(form.tensor);
    }
  }
  std::int64_t all = 0;
  for (const TensorId id : parameters) all += elements_at(graph.tensor(id).shape, 1);
  if (all == 0) return 1;
  const std::vector<std::int64_t> held = work.held_elements();
  return static_cast<double>(*std::max_element(held.begin(), held.end())) /
         static_cast<double>(all);
}

}  // namespace

RoughTeams::Body::Body(const Problem& problem, TeamBody own)
    : body(std::move(own)),
      work(problem.graph, body, problem.training.precision),
      most_held(most_held_of(problem.graph, body, work)) {}

RoughTeams::Body& RoughTeams::find(const TeamBody& body) {
  for (const std::unique_ptr<Body>& known : known_) {
    if (known->body == body) return *known;
  }
  remembered_ += body.ops.size() * body.members() * kBytesOfRoughOperator;
  return *known_.emplace_back(std::make_unique<Body>(problem_, body));
}

const TeamTimes& RoughTeams::times(Body& body, const TeamPlace& place,
                                   const std::vector<TeamPlace>& beside) {
  const auto [known, added] = body.times.try_emplace({place, beside});
  if (added) {
    known->second = body.work.times(problem_.cluster, costs_, place.devices, place.samples, beside);
    remembered_ += body.body.ops.size() * place.devices.size() * sizeof(double);
  }
  return known->second;
}

void RoughTeams::forget_if_many() {
  if (remembered_ < kMostBytes) return;
  known_.clear();
  remembered_ = 0;
}

/// Returns the passes of a stage whose replicas are teams; `busy` gets what members compute of a
/// micro-batch.
RoughModel::Passes RoughModel::compute_teams(const StageSpec& spec,
                                             const std::vector<TeamBody>& bodies, double& busy) {
  Passes slowest;
  if (spec.has_unlike_teams()) {
    for (const StageSpec& alike : by_body(spec)) {
      const Passes own = compute_teams(alike, bodies, busy);
      slowest.forward = std::max(slowest.forward, own.forward);
      slowest.backward = std::max(slowest.backward, own.backward);
      slowest.both = std::max(slowest.both, own.both);
      slowest.step_end = std::max(slowest.step_end, own.step_end);
    }
    return slowest;
  }
  RoughTeams::Body& known = teams_.find(bodies[at(spec.body)]);
  const std::vector<TeamPlace> places = places_of_teams(spec);
  const std::vector<std::vector<TeamPlace>> beside = teams_beside(problem_.cluster, places);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const TeamTimes& own = teams_.times(known, places[i], beside[i]);
    for (const TeamPassSeconds* const pass : {&own.forward, &own.backward}) {
      for (const double seconds : pass->computing) busy += seconds;
    }
    slowest.forward = std::max(slowest.forward, own.forward.seconds);
    slowest.backward = std::max(slowest.backward, own.backward.seconds);
    slowest.both = std::max(slowest.both, own.forward.seconds + own.backward.seconds);
    slowest.step_end = std::max(slowest.step_end, own.step_end.seconds);
  }
  return slowest;
}

/// Adds what the routes between two replicas are loaded with, from each member to those that get
/// its tensors. Returns the longest.
RoughModel::Passed RoughModel::load_members(const StageSpec& senders, std::size_t from,
                                            const StageSpec& receivers, std::size_t to,
                                            double bytes, Loads& loads) const {
  if (!senders.has_teams() && !receivers.has_teams()) {
    return load_route(senders.devices[from], receivers.devices[to], bytes, loads);
  }
  const std::vector<DeviceId> givers = members_of(senders, from);
  const std::vector<DeviceId> takers = members_of(receivers, to);
  Passed longest;
  for (std::size_t m = 0; m < takers.size(); ++m) {
    const Passed own = load_route(givers[m % givers.size()], takers[m], bytes, loads);
    longest.latency = std::max(longest.latency, own.latency);
    longest.seconds = std::max(longest.seconds, own.seconds);
  }
  return longest;
}

/// Loads the links with the all-reduces of a stage: of teams, with those of each member; of unlike
/// ones, roughly, with that of first members.
void RoughModel::load_rings(const StageSpec& spec, double bytes, double seconds) {
  load_ring(spec.devices, bytes, seconds);
  if (spec.has_unlike_teams()) return;
  for (std::size_t m = 0; spec.has_teams() && m < spec.further[0].size(); ++m) {
    std::vector<DeviceId> devices;
    for (const std::vector<DeviceId>& further : spec.further) devices.push_back(further[m]);
    std::sort(devices.begin(), devices.end());
    load_ring(devices, bytes, seconds);
  }
}

}  // namespace agpcs
