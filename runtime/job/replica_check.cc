// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/replica_check.h"

#include "ir/plan/body/body.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/lookup.h"
#include "runtime/replay/resolved_program.h"
#include "runtime/support/checksum.h"
#include "runtime/support/message_tags.h"
#include "runtime/support/withdraw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace agpcs {
namespace {

// Returns the ranks that hold the same as a rank: the members of its number of those replicas that
// have its body.
std::vector<int> alike_ranks(const Plan& plan, int rank) {
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(plan.stage_of_rank(rank))];
  if (!stage.has_unlike_teams()) return replicas_of(plan, rank).ranks;
  const int body = stage.body_of(static_cast<std::size_t>(replica_of(stage, rank)));
  std::vector<int> ranks;
  for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
    if (stage.body_of(i) == body) ranks.push_back(stage.members(i)[member_of(stage, rank)]);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

constexpr std::int64_t kChunk = 1 << 18;  // elements

// Returns the parameters by name that all replicas of a rank have, and whether they also share
// what the optimizer remembers of them. Other state, such as running means, may differ between
// replicas.
std::map<std::string, bool> parameters_of(const Plan& plan, int rank) {
  std::map<std::string, bool> shared;
  for (const PlanBucket& bucket : plan.buckets) {
    if (!holds(plan, rank, bucket) || bucket.divides_parameters()) continue;
    for (const BucketMember& member : bucket.members) {
      shared.emplace(member.parameter, !bucket.is_sharded());
    }
  }
  return shared;
}

Result<std::uint64_t> sum_of_parameters(const Plan& plan, int rank, const Executor& executor) {
  const std::map<std::string, bool> parameters = parameters_of(plan, rank);
  std::vector<float> values(static_cast<std::size_t>(kChunk));
  std::uint64_t sum = 0;
  for (const StateItem& item : executor.state()) {
    const auto found = parameters.find(item.tensor);
    if (found == parameters.end() || (item.slot != kValueSlot && !found->second)) continue;
    const ElementRange has = item.range();
    for (std::int64_t first = has.begin; first < has.end; first += kChunk) {
      const std::int64_t count = std::min(kChunk, has.end - first);
      AGPCS_RETURN_IF_ERROR(executor.read_state(item, first, count, values.data()));
      const auto read = static_cast<std::size_t>(item.count_of(first, count));
      sum = checksum(values.data(), read * sizeof(float), sum);
    }
  }
  return sum;
}

// Compares checksums: the first replica sends its own as `first` to the others, and each of
// them compares.
Status compare(std::uint64_t own, std::uint64_t& first, const std::vector<int>& replicas, int rank,
               Transport& transport, std::int64_t step, std::chrono::milliseconds limit) {
  first = own;
  const Buffer buffer{&first, sizeof first, DType::kUint8, false};
  if (rank == replicas.front()) {
    Ticket last = 0;
    for (const int replica : replicas) {
      if (replica == rank) continue;
      AGPCS_TRY(last, transport.send(buffer, replica, kReplicaTag));
    }
    return transport.wait(Stream::kSend, last, limit);
  }
  AGPCS_TRY(const Ticket ticket, transport.recv(buffer, replicas.front(), kReplicaTag));
  AGPCS_RETURN_IF_ERROR(transport.wait(Stream::kRecv, ticket, limit));
  if (first == own) return {};
  return {StatusCode::kUnavailable,
          fmt::format("before step {} the parameters differ from those of rank {}: checksum "
                      "{:016x} here, {:016x} there\n"
                      "  hint: the ranks began with different weights, or a device or a message "
                      "is damaged; --check-messages finds damaged messages",
                      step, replicas.front(), own, first)};
}

}  // namespace

Status check_replicas(const Plan& plan, int rank, const Executor& executor, Transport& transport,
                      std::int64_t step, std::chrono::milliseconds limit) {
  const std::vector<int> replicas = alike_ranks(plan, rank);
  if (replicas.size() == 1 || executor.state().empty()) return {};
  const auto own = sum_of_parameters(plan, rank, executor);
  Status status = own.status();
  std::uint64_t first = 0;
  if (own.ok()) status = compare(*own, first, replicas, rank, transport, step, limit);
  if (status.ok()) return {};
  status = Status(status.code(), fmt::format("rank {} ({}): {}", rank, device_of_rank(plan, rank),
                                             status.message()));
  return withdraw(transport, status, limit);  // `first` is about to go
}

}  // namespace agpcs
