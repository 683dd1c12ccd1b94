// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/nccl_tuner.h"

#include "cost_model/network/link_model.h"
#include "ir/plan/lookup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// What NCCL's tuner knows of a communicator.
struct Communicator {
  int nodes = 0, ranks = 0;
  friend bool operator<(const Communicator& a, const Communicator& b) {
    return std::pair(a.nodes, a.ranks) < std::pair(b.nodes, b.ranks);
  }
};

/// The all-reduces of the stages whose communicators look alike.
struct Reductions {
  std::vector<std::vector<DeviceId>> groups;  ///< the devices of each stage
  std::vector<const PlanBucket*> buckets;
  std::map<std::int64_t, std::set<AllReduce>> planned;  ///< rings and trees, by bytes
};

/// Sizes with one choice.
struct Range {
  std::int64_t from = 0, to = 0;  ///< bytes, both inclusive
  AllReduce choice = AllReduce::kRing;
};

std::vector<DeviceId> devices_of(const std::vector<int>& ranks, const Plan& plan,
                                 const Cluster& cluster) {
  const std::vector<std::string> names = devices_of_ranks(plan);
  std::vector<DeviceId> devices;
  for (const int rank : ranks) {
    devices.push_back(cluster.find_device(names[static_cast<std::size_t>(rank)]));
  }
  return devices;
}

std::map<Communicator, Reductions> reductions_of(const Plan& plan, const Cluster& cluster) {
  std::map<int, std::vector<const PlanBucket*>> groups;
  for (const PlanBucket& bucket : plan.buckets) {
    if (is_reduced(plan, bucket) && !bucket.is_sharded())
      groups[group_of(plan, bucket)].push_back(&bucket);
  }
  std::map<Communicator, Reductions> found;
  for (const auto& [group, buckets] : groups) {
    const std::vector<DeviceId> devices =
        devices_of(ranks_of(plan, *buckets.front()), plan, cluster);
    std::set<int> hosts;
    for (const DeviceId device : devices) {
      hosts.insert(cluster.devices[static_cast<std::size_t>(device)].host);
    }
    Reductions& of = found[{static_cast<int>(hosts.size()), static_cast<int>(devices.size())}];
    of.groups.push_back(devices);
    for (const PlanBucket* bucket : buckets) {
      of.buckets.push_back(bucket);
      if (bucket->algorithm != AllReduce::kRing && bucket->algorithm != AllReduce::kTree) continue;
      of.planned[travelling_bytes(plan.training, *bucket)].insert(bucket->algorithm);
    }
  }
  return found;
}

AllReduce faster(const Cluster& cluster, const Reductions& of, std::int64_t bytes) {
  double ring = 0, tree = 0;
  for (const std::vector<DeviceId>& devices : of.groups) {
    ring += lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kRing, bytes));
    tree += lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kTree, bytes));
  }
  return tree < ring ? AllReduce::kTree : AllReduce::kRing;
}

/// Cuts the sizes from `least` to `most` where the faster algorithm changes. Sizes are probed at
/// doublings: a choice that holds for less than a doubling in between may be missed.
std::vector<Range> ranges_of(const Cluster& cluster, const Reductions& of, std::int64_t least,
                             std::int64_t most) {
  std::vector<Range> ranges = {{least, least, faster(cluster, of, least)}};
  for (std::int64_t at = least; at < most;) {
    const std::int64_t next = at > most / 2 ? most : std::max(at * 2, at + 1);
    const AllReduce choice = faster(cluster, of, next);
    std::int64_t low = at, high = next;  // the choice changes in (low, high]
    while (choice != ranges.back().choice && high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (faster(cluster, of, middle) == choice ? high : low) = middle;
    }
    if (choice != ranges.back().choice) {
      ranges.back().to = high - 1;
      ranges.push_back({high, next, choice});
    }
    ranges.back().to = next;
    at = next;
  }
  return ranges;
}

AllReduce choice_at(const std::vector<Range>& ranges, std::int64_t bytes) {
  for (const Range& range : ranges) {
    if (bytes <= range.to) return range.choice;
  }
  return ranges.back().choice;
}

std::string line(const Communicator& communicator, const Range& range, int channels) {
  return fmt::format("allreduce,{},{},{},simple,{},{},{},-1,-1\n", range.from, range.to,
                     name_of(range.choice), channels, communicator.nodes, communicator.ranks);
}

std::string lines_of(const Plan& plan, const Cluster& cluster, const Communicator& communicator,
                     const Reductions& of, int channels) {
  std::string text;
  std::int64_t least = travelling_bytes(plan.training, *of.buckets[0]), most = least;
  for (const PlanBucket* bucket : of.buckets) {
    const std::int64_t bytes = travelling_bytes(plan.training, *bucket);
    least = std::min(least, bytes);
    most = std::max(most, bytes);
    text += fmt::format("# {}: {} bytes, {} in the plan\n", bucket->name, bytes,
                        name_of(bucket->algorithm));
  }
  const std::vector<Range> ranges = ranges_of(cluster, of, least, most);
  for (const auto& [bytes, choices] : of.planned) {
    if (choices.size() > 1 || *choices.begin() == choice_at(ranges, bytes)) continue;
    text += line(communicator, {bytes, bytes, *choices.begin()}, channels);
  }
  for (const Range& range : ranges) text += line(communicator, range, channels);
  return text;
}

}  // namespace

Result<std::string> nccl_tuner_csv(const Plan& plan, const Cluster& cluster, int channels) {
  const std::map<Communicator, Reductions> found = reductions_of(plan, cluster);
  if (found.empty()) {
    return invalid_input(
        "the plan has no all-reduce to choose an algorithm for\n"
        "  hint: each of its stages has one rank");
  }
  // The plugin reads lines of at most 255 characters.
  std::string text =
      "# made by agpcs-plan export --format nccl-tuner; the first line that matches counts\n"
      "# colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n";
  for (const auto& [communicator, of] : found)
    text += lines_of(plan, cluster, communicator, of, channels);
  return text;
}

}  // namespace agpcs
