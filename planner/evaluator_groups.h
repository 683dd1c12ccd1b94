// SPDX-License-Identifier: Apache-2.0
// Device groups and the exchanges of and between devices, worked out once and looked up afterwards.
#pragma once

#include "cost_model/link_model.h"
#include "planner/bucket_schedule.h"
#include "planner/problem.h"

#include <agpcs/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

struct GroupInfo {
  std::vector<DeviceId> devices;
  std::uint64_t number = 0;     ///< its own, also after others were forgotten
  std::vector<CostLine> lines;  ///< `collective_lines`, once asked for
  std::unordered_map<std::int64_t, AllReduce> chosen;  ///< algorithm by bytes
  std::unordered_map<std::int64_t, Exchange> sums;     ///< by bytes and algorithm
  struct FlowSum {
    PlanFlow flow;
    std::int64_t bytes = 0;
    Exchange exchange;
  };
  std::deque<FlowSum> flow_sums;
  Exchange small;  ///< the report's; when it was asked for
};

class GroupTable {
 public:
  explicit GroupTable(const Problem& problem) : problem_(problem) {}

  /// Between evaluations: forgets everything when it is much, and says so.
  bool forget_if_many();
  /// `last`: what the caller had before, tried first.
  GroupInfo* find(const std::vector<DeviceId>& devices, GroupInfo* last);
  AllReduce choose(GroupInfo& group, std::int64_t bytes);
  const std::vector<CostLine>& lines_of(GroupInfo& group) const;
  const Exchange* all_reduce_of(GroupInfo& group, AllReduce algorithm, std::int64_t bytes);
  /// The same along a flow of that group.
  const Exchange* flow_of(GroupInfo& group, const PlanFlow& flow, std::int64_t bytes);
  const Exchange* report_of(GroupInfo& group);
  /// Its flow's bytes mean nothing.
  const Exchange* transfer_between(DeviceId from, DeviceId to);

 private:
  void set_lone_rates(Exchange& exchange) const;

  const Problem& problem_;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<GroupInfo>> groups_;
  std::unordered_map<std::uint64_t, Exchange> transfers_;  // by devices
  std::size_t remembered_ = 0;                             // bytes, about
  std::uint64_t groups_so_far_ = 0;
};

}  // namespace agpcs
