// SPDX-License-Identifier: Apache-2.0
// TeamWork: what the members of a team do in a step, and how long it takes.
#pragma once

#include "cost_model/network/link_model.h"
#include "cost_model/step/team/member_costs.h"
#include "cost_model/step/team/script.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/graph/split/split.h"
#include "ir/strategy/strategy.h"
#include "ir/team/body.h"

#include <agpcs/training.h>
#include <agpcs/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// What a pass of a team takes, or the end of its step.
struct TeamPassSeconds {
  double seconds = 0;
  double exchange = 0;            ///< seconds of these in which the members exchange
  std::vector<double> computing;  ///< by member: seconds in which it computes, or copies
};

/// What the passes of a team take for a number of samples.
struct TeamTimes {
  TeamPassSeconds forward, backward;
  TeamPassSeconds step_end;  ///< after the step's last backward pass
  /// Returns the seconds from the start of that pass until gradients of parameters are whole: an
  /// executor announces none before the members have exchanged all.
  double gradients() const { return backward.seconds + step_end.seconds; }
};

/// A team: its devices, the members in their order, and its samples of a micro-batch.
struct TeamPlace {
  std::vector<DeviceId> devices;
  std::int64_t samples = 0;
  friend auto operator<=>(const TeamPlace&, const TeamPlace&) = default;
};

/// Returns the teams of a stage whose replicas are teams.
std::vector<TeamPlace> places_of_teams(const StageSpec& spec);

/// Returns, for each of a stage's teams, the others whose exchanges may cross a link that its own
/// cross, in the order of `teams`. A device's ports are its own, so that teams within hosts share
/// no link. Cost: O(teams x members^2) routes, of teams on several hosts.
std::vector<std::vector<TeamPlace>> teams_beside(const Cluster& cluster,
                                                 const std::vector<TeamPlace>& teams);

/// Returns whether nothing else is on the links of a team while it exchanges, in a plan of so many
/// stages; `apart`: no team of its stage is beside it. Its stage sums gradients when all of its
/// teams have exchanged, but other stages send and sum at any time.
inline bool is_alone_on_links(std::size_t stages, bool apart) { return stages == 1 && apart; }

/// The work of the teams of a stage: all on which their times depend but devices and samples.
///
/// A pass is one computation on all members, which meet at each collective. So it takes the sum
/// over the runs of operators between collectives of the slowest member's seconds, and the seconds
/// of the collectives, one after the other, each with the overhead of a collective on the slowest
/// member (`message_overhead`). Members meet within an operator that reduces inside, too: it is the
/// last of its run. What an exchange copies within a member's memory takes the bytes at the
/// bandwidth of that memory, before the members meet, and belongs to what the member computes.
///
/// `script` says this for the engine, where collectives share links with all that moves at the same
/// time. `times` gives the seconds without a simulation: a collective shares links with the same
/// collective of the stage's teams beside it, and with nothing else.
///
/// Refers to `graph` and `body`.
class TeamWork {
 public:
  TeamWork(const Graph& graph, const TeamBody& body, Precision precision);
  /// The same of a body that differs in its parts and divisions alone, in less time.
  TeamWork(const TeamWork& like, const TeamBody& body);

  std::size_t members() const { return body_.members(); }
  const TeamBody& body() const { return body_; }
  /// Returns the times of a team of `devices`, the members in their order. `costs` are those of the
  /// graph. The teams of `beside` (`teams_beside`) exchange whenever it does. Cost: O(members x
  /// operators + exchanges x members^2), with the exchanges of all of these teams.
  TeamTimes times(const Cluster& cluster, MemberCosts& costs, const std::vector<DeviceId>& devices,
                  std::int64_t samples, const std::vector<TeamPlace>& beside = {}) const;
  /// Returns what such a team does in its passes. `alone`: nothing else is ever on its links.
  /// Cost: as `times`, without those of other teams.
  TeamScript script(const Cluster& cluster, MemberCosts& costs,
                    const std::vector<DeviceId>& devices, std::int64_t samples, bool alone) const;
  /// Returns the elements that each member holds of a parameter. Needs: the body trains it.
  const std::vector<std::int64_t>& held(TensorId parameter) const { return held_.at(parameter); }
  /// Returns the elements that each member holds of all parameters that the body trains.
  std::vector<std::int64_t> held_elements() const;

  /// Returns the collectives of a forward or backward pass, and of the end of a step, on the links
  /// of `devices`.
  std::vector<Exchange> exchanges(const Cluster& cluster, const std::vector<DeviceId>& devices,
                                  std::int64_t samples, bool forward) const;
  std::vector<Exchange> step_end_exchanges(const Cluster& cluster,
                                           const std::vector<DeviceId>& devices) const;

 private:
  class Recorder;
  struct Recorded;
  Recorded record(const Cluster& cluster, MemberCosts& costs, const std::vector<DeviceId>& devices,
                  std::int64_t samples) const;
  template <typename Operators, typename Exchanges>
  void walk(bool forward, std::int64_t samples, Operators operators, Exchanges exchange) const;
  void find_parts();
  void find_held();

  const Graph& graph_;
  const TeamBody& body_;
  Precision precision_;
  std::vector<std::int64_t> units_;         // by operator of the body: those of its split
  std::vector<std::vector<MemberOp>> ops_;  // by member, then operator of the body
  std::unordered_map<TensorId, std::vector<std::int64_t>> held_;  // elements, by member
  std::unordered_map<std::size_t, OpSplit> inside_;  // splits of operators that reduce inside
};

}  // namespace agpcs
