// SPDX-License-Identifier: Apache-2.0
// The evaluator's table of device groups (the devices whose replicas sum gradients together), of
// their collectives, and of the transfers between devices. An `Exchange` is what one of these puts
// on which links. Each is worked out once and looked up afterwards.
#pragma once

#include "cost_model/network/link_model.h"
#include "planner/evaluate/bucket_schedule.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/problem/problem.h"

#include <agpcs/types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// A device group and its collectives.
struct GroupInfo {
  std::vector<DeviceId> devices;
  std::uint64_t number = 0;     ///< unique, also after others were forgotten
  std::vector<CostLine> lines;  ///< `collective_lines`, once someone asks for them
  /// The algorithm, by what becomes of the sum, then by bytes.
  std::array<std::unordered_map<std::int64_t, AllReduce>, 2> chosen;
  std::unordered_map<std::int64_t, Exchange> sums;  ///< all-reduces, by bytes and algorithm
  /// An all-reduce along a flow.
  struct FlowSum {
    PlanFlow flow;
    std::int64_t bytes = 0;
    Exchange exchange;
  };
  std::deque<FlowSum> flow_sums;
  /// Halves of all-reduces, by algorithm and bytes of the parts.
  using Halves = std::map<std::pair<AllReduce, std::vector<std::int64_t>>, Exchange>;
  Halves reduce_scatters, all_gathers;
  Exchange report, norm;  ///< of a group of all ranks, once someone asks for it
};

class GroupTable {
 public:
  explicit GroupTable(const Problem& problem) : problem_(problem) {}

  /// Forgets everything if it is much, and returns whether it did. Call it between evaluations.
  bool forget_if_many();
  /// Finds or makes the group. `last`: the group that the caller had before, which is tried first.
  GroupInfo* find(const std::vector<DeviceId>& devices, GroupInfo* last);
  /// Returns `choose_algorithm` for the group; the ring for 0 bytes.
  AllReduce choose(GroupInfo& group, std::int64_t bytes, BucketSum sum);
  /// Returns `collective_lines` for the group.
  const std::vector<CostLine>& lines_of(GroupInfo& group) const;
  /// Returns the all-reduce of `bytes` over the group by `algorithm`.
  const Exchange* all_reduce_of(GroupInfo& group, AllReduce algorithm, std::int64_t bytes);
  /// Return the halves of an all-reduce of parts of so many bytes, parallel to the devices.
  const Exchange* reduce_scatter_of(GroupInfo& group, AllReduce algorithm,
                                    const std::vector<std::int64_t>& parts);
  const Exchange* all_gather_of(GroupInfo& group, AllReduce algorithm,
                                const std::vector<std::int64_t>& parts);
  /// Returns the all-reduce of `bytes` over the group along `flow`.
  const Exchange* flow_of(GroupInfo& group, const PlanFlow& flow, std::int64_t bytes);
  /// Returns the report of a step over the group, which has the devices of all ranks.
  const Exchange* report_of(GroupInfo& group);
  /// Returns the sum of the squares of gradients over that group.
  const Exchange* norm_of(GroupInfo& group);
  /// Returns the transfer between two devices. The caller gives the bytes (`FlatChannel::bytes`):
  /// those of its flow are 0.
  const Exchange* transfer_between(DeviceId from, DeviceId to);

 private:
  const Exchange* half_of(GroupInfo::Halves& known, GroupInfo& group, AllReduce algorithm,
                          const std::vector<std::int64_t>& parts);
  void set_lone_rates(Exchange& exchange) const;

  const Problem& problem_;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<GroupInfo>> groups_;
  std::unordered_map<std::uint64_t, Exchange> transfers_;  // by the two devices
  std::size_t remembered_ = 0;                             // about how many bytes
  std::uint64_t groups_so_far_ = 0;
};

}  // namespace agpcs
