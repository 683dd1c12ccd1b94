// SPDX-License-Identifier: Apache-2.0
// Makes replayers: what ranks agree on, open and prepare before the first step.
#include "ir/plan/body/groups.h"
#include "ir/plan/lookup.h"
#include "runtime/replay/plan_agreement.h"
#include "runtime/replay/plan_replayer.h"

#include <agpcs/replayer.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Opens the groups of the rank, in the order of their numbers, as all ranks do, and the flows of
/// its stages.
Status open_groups(const Plan& plan, int rank, Transport& transport) {
  const std::vector<int> hosts = hosts_of_ranks(plan);
  for (const PlanGroup& group : groups_of(plan, rank)) {
    AGPCS_RETURN_IF_ERROR(transport.open_group(group.number, group.ranks, hosts));
  }
  if (plan.flows.empty()) return {};
  const std::vector<int> stages = stages_of_rank(plan, rank);
  const auto first = static_cast<std::size_t>(stages.front());
  if (plan.stages[first].has_unlike_teams()) return {};  // it has no flow
  const int group = replicas_of(plan, rank).number;
  for (std::size_t f = 0; f < plan.flows.size(); ++f) {
    if (std::find(stages.begin(), stages.end(), plan.flows[f].stage) == stages.end()) continue;
    AGPCS_RETURN_IF_ERROR(transport.open_flow(static_cast<int>(f), group, plan.flows[f]));
  }
  return {};
}

/// Lets the executor of a member exchange with its team.
Status connect_team(const Plan& plan, int rank, Transport& transport, Executor& executor,
                    std::chrono::milliseconds limit) {
  const std::optional<PlanGroup> team = team_of(plan, rank);
  return team ? executor.exchange_with({&transport, team->number, limit}) : Status();
}

Result<std::unique_ptr<RecordingReplayer>> build(const Plan& plan, int rank, Transport& transport,
                                                 Executor& executor, const ReplayOptions& options,
                                                 int record_after) {
  AGPCS_RETURN_IF_ERROR(check_fit(plan, rank, transport));
  AGPCS_TRY(ResolvedProgram program, resolve(plan, rank));
  AGPCS_RETURN_IF_ERROR(agree_on_plan(plan, transport, options.limit));
  AGPCS_RETURN_IF_ERROR(open_groups(plan, rank, transport));
  if (!options.prepared) AGPCS_RETURN_IF_ERROR(prepare_executor(plan, rank, executor));
  AGPCS_RETURN_IF_ERROR(connect_team(plan, rank, transport, executor, options.limit));
  AGPCS_TRY(GradientRounding rounding, GradientRounding::make(plan, program, executor));
  AGPCS_TRY(SliceSums slices, SliceSums::make(plan, program, executor));
  auto replayer =
      std::make_unique<PlanReplayer>(plan, rank, std::move(program), std::move(rounding),
                                     std::move(slices), transport, executor, options, record_after);
  AGPCS_RETURN_IF_ERROR(replayer->connect_parameters());
  return std::unique_ptr<RecordingReplayer>(std::move(replayer));
}

}  // namespace

Result<std::unique_ptr<Replayer>> Replayer::create(const Plan& plan, int rank, Transport& transport,
                                                   Executor& executor,
                                                   const ReplayOptions& options) {
  AGPCS_TRY(auto replayer, RecordingReplayer::create(plan, rank, transport, executor, options,
                                                     /*record_after=*/0));
  return std::unique_ptr<Replayer>(std::move(replayer));
}

Result<std::unique_ptr<RecordingReplayer>> RecordingReplayer::create(const Plan& plan, int rank,
                                                                     Transport& transport,
                                                                     Executor& executor,
                                                                     const ReplayOptions& options,
                                                                     int record_after) {
  auto replayer = build(plan, rank, transport, executor, options, record_after);
  if (replayer.ok()) return replayer;
  const Status cause = replayer.status();
  const Status status(cause.code(), fmt::format("{}: {}", rank_name(plan, rank), cause.message()));
  transport.abort(status);
  return status;
}

}  // namespace agpcs
