// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/group_gradients.h"

#include "cost_model/network/link_model.h"
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/strategy/interleaved.h"
#include "ir/strategy/state_parts.h"
#include "planner/evaluate/collective_lines.h"
#include "planner/evaluate/evaluator_buckets.h"
#include "planner/evaluate/evaluator_stages.h"
#include "planner/evaluate/step/teams.h"

#include <limits>
#include <set>
#include <utility>

namespace agpcs {

namespace {

std::vector<std::int64_t> equal_parts(std::int64_t bytes, std::size_t devices) {
  const auto count = static_cast<std::int64_t>(devices);
  std::vector<std::int64_t> parts(devices, bytes / count);
  parts.front() += bytes % count;
  return parts;
}

}  // namespace

BucketSum sum_of_stage(const StageSpec& spec, const Training& training) {
  return divides_state(spec, training) ? BucketSum::kInParts : BucketSum::kOnAll;
}

std::int64_t travelling_bytes(const Problem& problem, const Bucket& bucket) {
  std::int64_t bytes = 0;
  for (const TensorId id : bucket.parameters) bytes += gradient_of(problem, id).travelling_bytes;
  return bytes;
}

AllReduce choose_algorithm(const Cluster& cluster, const std::vector<DeviceId>& devices,
                           std::int64_t bytes, BucketSum sum) {
  std::set<int> hosts;
  for (const DeviceId device : devices) hosts.insert(cluster.devices[at(device)].host);
  const bool two_levels = hosts.size() > 1 && hosts.size() < devices.size();
  AllReduce best = AllReduce::kRing;
  double least = std::numeric_limits<double>::infinity();
  for (const AllReduce algorithm : kAllReduces) {
    if (algorithm == AllReduce::kHierarchical && !two_levels) continue;  // a ring is not slower
    double seconds = 0;
    if (sum == BucketSum::kOnAll || devices.size() < 2) {
      seconds = lone_seconds(cluster, all_reduce(cluster, devices, algorithm, bytes));
    } else {
      const std::vector<std::int64_t> parts = equal_parts(bytes, devices.size());
      seconds = lone_seconds(cluster, reduce_scatter(cluster, devices, algorithm, parts)) +
                lone_seconds(cluster, all_gather(cluster, devices, algorithm, parts));
    }
    if (seconds >= least) continue;
    best = algorithm;
    least = seconds;
  }
  return best;
}

Strategy group_gradients(const Problem& problem, Strategy strategy, std::int64_t bucket_bytes) {
  AGPCS_CHECK(strategy.buckets.empty(), "strategy has {} buckets", strategy.buckets.size());
  StageTable table(problem);
  TeamTable teams(problem, table);
  const PartitionInfo& partition =
      table.partition(strategy.stage_of, strategy.stages.size(), round_size(strategy));
  for (std::size_t place = 0; place < strategy.stages.size(); ++place) {
    const int number = stage_to_sum(strategy, place);
    const std::size_t s = at(number);
    StageInfo& stage = *partition.stages[s];
    const StageSpec& spec = strategy.stages[s];
    const bool unlike = spec.has_unlike_teams();
    TeamInfo* const team =
        spec.has_teams() && !unlike ? &teams.find(stage, strategy.bodies[at(spec.body)]) : nullptr;
    const bool fills = divided_by(spec, problem.training) >= StateLevel::kGradients;
    const auto lines = [&] { return collective_lines(problem.cluster, spec.devices); };
    // Teams announce no gradient before their last backward pass has ended.
    constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
    const StageInfo::Groups& groups =
        unlike            ? table.packed(stage, bucket_bytes > 0 ? bucket_bytes : kAll)
        : team != nullptr ? bucket_bytes > 0 ? teams.packed(*team, bucket_bytes)
                                             : teams.scheduled(*team, spec, lines(), s)
        : fills ? table.filled(stage, bucket_bytes)
        : bucket_bytes > 0
            ? table.packed(stage, bucket_bytes)
            : table.scheduled(stage, spec, strategy.schedule == Schedule::kZeroBubble, lines(), s);
    std::size_t next = 0;
    for (const StageInfo::Group& group : groups) {
      Bucket bucket = {number, AllReduce::kRing, {}};
      if (group.bytes > 0) {
        bucket.algorithm = choose_algorithm(problem.cluster, spec.devices, group.bytes,
                                            sum_of_stage(spec, problem.training));
      }
      for (std::int64_t i = 0; i < group.tensors; ++i) {
        bucket.parameters.push_back(stage.parameters[next++].id);
      }
      strategy.buckets.push_back(std::move(bucket));
    }
  }
  for (const SharedParameters* const shared : table.shared(partition, bucket_bytes)) {
    Bucket bucket = {shared->stages.front(), AllReduce::kRing, shared->parameters};
    bucket.shared_with.assign(shared->stages.begin() + 1, shared->stages.end());
    if (shared->bytes > 0) {
      std::vector<DeviceId> devices;
      write_devices(strategy, shared->stages, devices);
      bucket.algorithm =
          choose_algorithm(problem.cluster, devices, shared->bytes, BucketSum::kOnAll);
    }
    strategy.buckets.push_back(std::move(bucket));
  }
  return strategy;
}

}  // namespace agpcs
