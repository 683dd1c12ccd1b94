// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator_groups.h"

#include "cost_model/flows/exchange.h"
#include "cost_model/step/model.h"
#include "planner/evaluate/collective_lines.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/problem/hash.h"

#include <utility>

namespace agpcs {
namespace {

/// About the most bytes that are remembered; beyond, all are forgotten.
constexpr std::size_t kMostGroupBytes = std::size_t{1} << 28;

std::size_t bytes_of(const Exchange& exchange) {
  std::size_t bytes = sizeof(Exchange);
  for (const Phase& phase : exchange) {
    for (const Flow& flow : phase.flows) {
      bytes += sizeof(Flow) + sizeof(int) * (flow.links.size() + 2 * flow.senders.size());
    }
  }
  return bytes;
}

}  // namespace

bool GroupTable::forget_if_many() {
  if (remembered_ < kMostGroupBytes) return false;
  groups_.clear();
  transfers_.clear();
  remembered_ = 0;
  return true;
}

GroupInfo* GroupTable::find(const std::vector<DeviceId>& devices, GroupInfo* last) {
  if (last != nullptr && last->devices == devices) return last;
  const std::uint64_t hash = hash_of(devices);
  const auto [begin, end] = groups_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second->devices == devices) return it->second.get();
  }
  auto group = std::make_unique<GroupInfo>();
  group->devices = devices;
  group->number = groups_so_far_++;
  remembered_ += sizeof(GroupInfo) + devices.size() * sizeof(DeviceId);
  return groups_.emplace(hash, std::move(group))->second.get();
}

AllReduce GroupTable::choose(GroupInfo& group, std::int64_t bytes, BucketSum sum) {
  if (bytes == 0) return AllReduce::kRing;
  const auto [entry, added] =
      group.chosen[static_cast<std::size_t>(sum)].try_emplace(bytes, AllReduce::kRing);
  if (added) {
    entry->second = choose_algorithm(problem_.cluster, group.devices, bytes, sum);
    remembered_ += 2 * sizeof(std::int64_t);
  }
  return entry->second;
}

const std::vector<CostLine>& GroupTable::lines_of(GroupInfo& group) const {
  if (group.lines.empty()) group.lines = collective_lines(problem_.cluster, group.devices);
  return group.lines;
}

const Exchange* GroupTable::all_reduce_of(GroupInfo& group, AllReduce algorithm,
                                          std::int64_t bytes) {
  const std::int64_t key = bytes * kAllReduceCount + static_cast<int>(algorithm);
  const auto [entry, added] = group.sums.try_emplace(key);
  if (added) {
    entry->second = all_reduce(problem_.cluster, group.devices, algorithm, bytes);
    set_lone_rates(entry->second);
    remembered_ += bytes_of(entry->second);
  }
  return &entry->second;
}

const Exchange* GroupTable::half_of(GroupInfo::Halves& known, GroupInfo& group, AllReduce algorithm,
                                    const std::vector<std::int64_t>& parts) {
  const auto [entry, added] = known.try_emplace({algorithm, parts});
  if (added) {
    entry->second = &known == &group.all_gathers
                        ? all_gather(problem_.cluster, group.devices, algorithm, parts)
                        : reduce_scatter(problem_.cluster, group.devices, algorithm, parts);
    set_lone_rates(entry->second);
    remembered_ += bytes_of(entry->second) + parts.size() * sizeof(std::int64_t);
  }
  return &entry->second;
}

const Exchange* GroupTable::reduce_scatter_of(GroupInfo& group, AllReduce algorithm,
                                              const std::vector<std::int64_t>& parts) {
  return half_of(group.reduce_scatters, group, algorithm, parts);
}

const Exchange* GroupTable::all_gather_of(GroupInfo& group, AllReduce algorithm,
                                          const std::vector<std::int64_t>& parts) {
  return half_of(group.all_gathers, group, algorithm, parts);
}

const Exchange* GroupTable::flow_of(GroupInfo& group, const PlanFlow& flow, std::int64_t bytes) {
  for (const GroupInfo::FlowSum& known : group.flow_sums) {
    if (known.bytes == bytes && known.flow == flow) return &known.exchange;
  }
  Exchange exchange = flow_all_reduce(problem_.cluster, group.devices, flow, bytes);
  set_lone_rates(exchange);
  remembered_ +=
      bytes_of(exchange) + static_cast<std::size_t>(flow.message_count()) * sizeof(FlowMessage);
  group.flow_sums.push_back({flow, bytes, std::move(exchange)});
  return &group.flow_sums.back().exchange;
}

const Exchange* GroupTable::report_of(GroupInfo& group) {
  if (group.report.empty() && group.devices.size() > 1) {
    group.report =
        report_all_reduce(problem_.cluster, group.devices, problem_.training.statistics_every);
    set_lone_rates(group.report);
    remembered_ += bytes_of(group.report);
  }
  return &group.report;
}

const Exchange* GroupTable::norm_of(GroupInfo& group) {
  if (group.norm.empty() && group.devices.size() > 1) {
    group.norm = norm_all_reduce(problem_.cluster, group.devices);
    set_lone_rates(group.norm);
    remembered_ += bytes_of(group.norm);
  }
  return &group.norm;
}

const Exchange* GroupTable::transfer_between(DeviceId from, DeviceId to) {
  const std::uint64_t key = static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint64_t>(to);
  const auto [entry, added] = transfers_.try_emplace(key);
  if (added) {
    entry->second = transfer(problem_.cluster, from, to, 0);
    set_lone_rates(entry->second);
    remembered_ += bytes_of(entry->second);
  }
  return &entry->second;
}

void GroupTable::set_lone_rates(Exchange& exchange) const {
  for (Phase& phase : exchange) {
    for (Flow& flow : phase.flows) {
      if (flow.links.empty()) continue;
      flow.lone_rate = lone_rate(flow, problem_.cluster.links);
    }
  }
}

}  // namespace agpcs
