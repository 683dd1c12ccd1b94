// SPDX-License-Identifier: Apache-2.0
// What the evaluator knows of stages whose replicas are teams: seconds, gradients, memory of each
// member. Everything is worked out once and looked up afterwards.
#pragma once

#include "cost_model/step/team/member_costs.h"
#include "cost_model/step/team/times.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/strategy.h"
#include "planner/evaluate/bucket_schedule.h"
#include "planner/evaluate/evaluator_stages.h"
#include "planner/problem/problem.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace agpcs {

/// What members of one number sum of a bucket.
struct MemberSum {
  std::int64_t elements = 0;
  std::int64_t bytes = 0;  ///< bytes that travel
};

/// A team, and the teams beside it (`teams_beside`).
using TeamKey = std::pair<TeamPlace, std::vector<TeamPlace>>;

/// A stage with the body of its teams. Does not move: parts of it refer to others.
struct TeamInfo {
  TeamInfo(const Problem& problem, const StageInfo& stage, TeamBody team_body)
      : body(std::move(team_body)),
        work(problem.graph, body, problem.training.precision),
        parameters(stage.parameters) {}
  TeamInfo(const TeamInfo&) = delete;
  TeamInfo& operator=(const TeamInfo&) = delete;

  TeamBody body;
  TeamWork work;
  const std::vector<StageInfo::Parameter>& parameters;  ///< of the stage
  std::map<TeamKey, TeamTimes> times;
  std::map<std::pair<TeamPlace, bool>, TeamScript> scripts;  ///< bool: the team is alone
  /// Buckets, as in StageInfo: by the most bytes, or by slowest team and number of device group.
  std::map<std::int64_t, StageInfo::Groups> packed;
  std::map<std::pair<TeamKey, std::uint64_t>, StageInfo::Groups> scheduled;
  /// What a member holds; made where someone asks for it.
  struct Member {
    Graph graph;
    StageParts parts;
    std::unique_ptr<StageMemoryModel> model;
    std::map<std::int64_t, StageMemory> memory;      ///< by samples, without gradients
    std::int64_t held_bytes = 0, rounded_bytes = 0;  ///< of gradients
  };
  std::vector<std::unique_ptr<Member>> members;
};

/// Looks up teams, or works them out. Refers to `problem`, and to `stages`, with which it forgets.
class TeamTable {
 public:
  TeamTable(const Problem& problem, StageTable& stages)
      : problem_(problem),
        stages_(stages),
        costs_(problem.graph, problem.cluster, problem.training, problem.costs) {}

  /// Returns the stage with that body. Cost: O(body), if it is known.
  TeamInfo& find(StageInfo& stage, const TeamBody& body);
  const TeamTimes& times(TeamInfo& team, const TeamPlace& place,
                         const std::vector<TeamPlace>& beside);
  const TeamScript& script(TeamInfo& team, const TeamPlace& place, bool alone);
  /// Returns the memory of member `member` of a team with `samples` samples of each micro-batch.
  /// `sums`: there are several teams.
  StageMemory memory(TeamInfo& team, const StageInfo& stage, std::size_t member,
                     std::int64_t samples, std::int64_t micro_batches, bool sums);
  /// Returns what member `member` sums of a parameter.
  MemberSum sum_of(const TeamInfo& team, const StageInfo::Parameter& parameter,
                   std::size_t member) const;

  /// Return buckets of consecutive ones of `TeamInfo::parameters`: their bytes are those that the
  /// member sums who sums most. Packed: of at most `bucket_bytes`. Scheduled: those of
  /// `schedule_buckets` for the slowest team of `spec`, with `lines` identified by `number`.
  const StageInfo::Groups& packed(TeamInfo& team, std::int64_t bucket_bytes);
  const StageInfo::Groups& scheduled(TeamInfo& team, const StageSpec& spec,
                                     const std::vector<CostLine>& lines, std::uint64_t number);

 private:
  std::int64_t most_bytes(const TeamInfo& team, const StageInfo::Parameter& parameter) const;
  StageInfo::Group group(const TeamInfo& team, std::size_t first, std::size_t count) const;
  TeamInfo::Member& member_of(TeamInfo& team, const StageInfo& stage, std::size_t member);

  const Problem& problem_;
  StageTable& stages_;
  MemberCosts costs_;
};

}  // namespace agpcs
