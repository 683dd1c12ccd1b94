// SPDX-License-Identifier: Apache-2.0
// StageTeams: the bodies and shares of stages whose devices form teams.
#pragma once

#include "cost_model/step/team/member_costs.h"
#include "ir/strategy/strategy.h"
#include "ir/team/body.h"
#include "planner/problem/problem.h"
#include "planner/team/content.h"
#include "planner/team/parts.h"
#include "planner/team/problem.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {

/// What a stage with teams is to be. All teams have as many members, two at least.
struct TeamOrder {
  std::vector<OpId> ops;                     ///< of the stage, ascending
  std::vector<std::vector<DeviceId>> teams;  ///< members, in their order if there are parts
  std::int64_t micro_batches = 1;
  TeamParts parts = {};  ///< of members, each positive; empty: they are chosen
  /// Of the samples, parallel to `teams`; empty: shares are proportional to the teams' speeds.
  std::vector<double> weights = {};
  /// Parameters are in parts wherever that costs less than computing the stage alone does. So they
  /// are, too, where what goes with all of them does not fit on a member.
  bool spare_memory = false;
  /// Parts of unlike members are climbed with the splits of the first choice alone.
  bool quick = false;
  /// How many of a micro-batch's samples these teams take; 0: all.
  std::int64_t samples = 0;
};

/// A stage with teams, but for the number of its body.
struct FormedStage {
  StageSpec spec;
  TeamBody body;
  bool exact = true;  ///< `TeamChoice::exact`
};

/// Moves single samples of a micro-batch from the slowest team to another one as long as the
/// slowest gets faster and keeps `least`, at most `moves` times. `seconds(team, samples)`: of a
/// team.
void level_shares(std::vector<std::int64_t>& shares, std::int64_t least, std::int64_t moves,
                  const std::function<double(std::size_t, std::int64_t)>& seconds);

/// Makes stages with teams, and remembers the bodies that it has chosen: for operators that are the
/// same but for their names, members of the same kinds on links that are alike, and about the same
/// samples: those of a choice are a power of four, as is the number of micro-batches. Not for
/// concurrent use. Refers to `problem`.
class StageTeams {
 public:
  explicit StageTeams(const Problem& problem)
      : problem_(problem),
        contents_(problem.graph),
        costs_(problem.graph, problem.cluster, problem.training, problem.costs) {}

  /// Unless parts are given, members of a team come in the order of their speed, so that those of
  /// one number are of like speed in all teams, which have one body. Parts are proportional to the
  /// speeds at which kinds compute the stage, or even, whichever takes less; from there they are
  /// climbed (`climb_parts`): with the splits as they are, then with a body chosen at each of a few
  /// tries (not if it is to be quick), then with the splits of the best. A member without room for
  /// the parameters of its part has a smaller one. Shares are proportional to the teams' speeds;
  /// then the slowest team gives single samples away as long as the slowest gets faster. Returns
  /// nothing if a team would have no sample, or if no team had one to spare for smaller
  /// micro-batches. Cost: that of a choice, of unlike members up to 16, if there is none yet
  /// (docs/design/teams.md#the-choice).
  std::optional<FormedStage> make(TeamOrder order);
  /// Returns the seconds of a micro-batch on the slowest team of a stage, but for the gradients of
  /// parameters. Cost: O(operators), by the number of unlike teams.
  double seconds(const TeamOrder& order, const FormedStage& stage);

  using Team = std::vector<DeviceId>;
  /// What the seconds of a team depend on: kinds, and how long members take to add up a little and
  /// a lot.
  struct Look {
    std::vector<int> kinds;
    std::vector<double> links;
    friend auto operator<=>(const Look&, const Look&) = default;
  };
  Look look_of(const Team& team) const;

 private:
  struct Chosen {
    int number = 0;
    StageContent content;  ///< of the stage for which it was chosen
    TeamBody body;
    bool exact = true;
  };
  using Key =
      std::tuple<std::vector<int>, std::vector<Look>, TeamParts, std::int64_t, std::int64_t, bool>;
  /// A body by its number, a team, and samples.
  using TimeKey = std::tuple<int, Look, std::int64_t>;

  /// Returns the seconds that a kind takes for the operators alone.
  double alone_seconds(const std::vector<OpId>& ops, int kind, std::int64_t samples) const;
  TeamParts parts_by_speed(const TeamOrder& order, std::int64_t samples) const;
  TeamProblem problem_of(const TeamOrder& order, const StageContent& content, std::int64_t samples,
                         TeamParts parts, std::vector<Team> unlike);
  const Chosen& choose(const TeamOrder& order, const StageContent& content, std::int64_t samples,
                       const TeamParts& parts, const std::vector<Team>& unlike);
  const Chosen& choose_parts(const TeamOrder& order, const StageContent& content,
                             std::int64_t samples, const std::vector<Team>& unlike);
  class PartsCost;
  Key key_of(const TeamOrder& order, const StageContent& content, std::int64_t samples,
             const TeamParts& parts, const std::vector<Team>& unlike) const;
  class Timer;
  static std::vector<std::int64_t> shares_of(Timer& timer, const TeamOrder& order,
                                             std::int64_t samples);
  /// Returns the bytes of a parameter's element, with its gradient and the optimizer's state.
  double bytes_of_element() const;
  bool has_room_for_all(const TeamOrder& order) const;
  /// Puts members and teams in their order, and weights with them.
  void put_in_order(TeamOrder& order) const;

  const Problem& problem_;
  StageContents contents_;
  MemberCosts costs_;
  std::map<Key, Chosen> chosen_;
  std::map<std::pair<Key, bool>, TeamParts> parts_;  // chosen, where the key has none; or quickly
  std::map<TimeKey, double> seconds_;  // of a micro-batch, but for gradients of parameters
};

/// Returns teams of `degree` devices each: of one kind on a host first, then of those left on a
/// host; where no host of the cluster has two devices, of any hosts. Devices that make no whole
/// team are left out. Needs: `devices` are ascending.
std::vector<std::vector<DeviceId>> teams_within_hosts(const Cluster& cluster,
                                                      const std::vector<DeviceId>& devices,
                                                      std::size_t degree);

}  // namespace agpcs
