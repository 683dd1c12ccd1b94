// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/plan_agreement.h"

#include "ir/plan/body/groups.h"
#include "ir/plan/lookup.h"
#include "runtime/replay/resolved_program.h"
#include "runtime/support/text_agreement.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <numeric>
#include <string>
#include <vector>

namespace agpcs {

Status check_fit(const Plan& plan, int rank, const Transport& transport) {
  AGPCS_RETURN_IF_ERROR(verify_plan(plan));
  if (plan.rank_count() != transport.size()) {
    return invalid_input(fmt::format("the plan is for {} ranks, the transport has {}",
                                     plan.rank_count(), transport.size()));
  }
  if (rank != transport.rank()) {
    return invalid_input(
        fmt::format("rank {} cannot use the transport of rank {}", rank, transport.rank()));
  }
  return {};
}

Status agree_on_plan(const Plan& plan, Transport& transport, std::chrono::milliseconds limit) {
  std::vector<int> ranks(static_cast<std::size_t>(transport.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  AGPCS_RETURN_IF_ERROR(transport.open_group(world_group(plan), ranks, hosts_of_ranks(plan)));
  const std::string own = digest_of(print_plan(plan));
  const Comparison all{transport, world_group(plan), ranks,
                       static_cast<std::size_t>(transport.rank()), limit};
  AGPCS_TRY(const std::vector<std::string> digests, gather_digests(all, own));
  for (std::size_t rank = 0; rank < digests.size(); ++rank) {
    if (digests[rank] == own) continue;
    return invalid_input(
        fmt::format("rank {} holds another plan: {} there, {} here", rank, digests[rank], own));
  }
  return {};
}

Status prepare_executor(const Plan& plan, int rank, Executor& executor) {
  const std::vector<int> stages = stages_of_rank(plan, rank);
  if (stages.size() > 1) AGPCS_RETURN_IF_ERROR(executor.compute_stages(stages));
  AGPCS_RETURN_IF_ERROR(executor.prepare(plan, rank));
  if (plan.training.optimizer.clips()) AGPCS_RETURN_IF_ERROR(executor.scale(1));
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    if (!plan.buckets[b].is_sharded() || !holds(plan, rank, plan.buckets[b])) continue;
    if (!plan.buckets[b].divides_parameters()) {
      AGPCS_TRY([[maybe_unused]] const Buffer buffer, executor.values(static_cast<int>(b)));
    }
    if (!plan.buckets[b].divides_gradients()) continue;
    AGPCS_RETURN_IF_ERROR(executor.fill_bucket(static_cast<int>(b)));
    AGPCS_RETURN_IF_ERROR(executor.keep_part(static_cast<int>(b)));
  }
  return {};
}

}  // namespace agpcs
