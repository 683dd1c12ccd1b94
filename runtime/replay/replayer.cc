// SPDX-License-Identifier: Apache-2.0
// Makes replayers: what ranks agree on, open and prepare before the first step.
#include "ir/plan/lookup.h"
#include "runtime/replay/plan_agreement.h"
#include "runtime/replay/plan_replayer.h"

#include <agpcs/replayer.h>

#include <fmt/format.h>

#include <memory>
#include <utility>

namespace agpcs {
namespace {

/// Opens the group of the rank's stage, its flows, and the groups of the buckets that the stage
/// shares. All ranks open them in the order of their numbers.
Status open_stage(const Plan& plan, int stage, Transport& transport) {
  const PlanStage& opened = plan.stages[static_cast<std::size_t>(stage)];
  AGPCS_RETURN_IF_ERROR(transport.open_group(stage, opened.ranks, hosts_of_ranks(plan)));
  for (std::size_t f = 0; f < plan.flows.size(); ++f) {
    if (plan.flows[f].stage != stage) continue;
    AGPCS_RETURN_IF_ERROR(transport.open_flow(static_cast<int>(f), stage, plan.flows[f]));
  }
  int opened_last = world_group(plan);
  for (const PlanBucket& bucket : plan.buckets) {
    const int group = group_of(plan, bucket);
    if (group <= opened_last) continue;
    opened_last = group;  // new sets of stages have ascending numbers
    if (!bucket.is_of(stage)) continue;
    AGPCS_RETURN_IF_ERROR(
        transport.open_group(group, ranks_of(plan, bucket), hosts_of_ranks(plan)));
  }
  return {};
}

Result<std::unique_ptr<RecordingReplayer>> build(const Plan& plan, int rank, Transport& transport,
                                                 Executor& executor, const ReplayOptions& options,
                                                 int record_after) {
  AGPCS_RETURN_IF_ERROR(check_fit(plan, rank, transport));
  AGPCS_TRY(ResolvedProgram program, resolve(plan, rank));
  AGPCS_RETURN_IF_ERROR(agree_on_plan(plan, transport, options.limit));
  AGPCS_RETURN_IF_ERROR(open_stage(plan, plan.stage_of_rank(rank), transport));
  if (!options.prepared) AGPCS_RETURN_IF_ERROR(prepare_executor(plan, rank, executor));
  AGPCS_TRY(GradientRounding rounding, GradientRounding::make(plan, program, executor));
  auto replayer =
      std::make_unique<PlanReplayer>(plan, rank, std::move(program), std::move(rounding), transport,
                                     executor, options, record_after);
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
