// SPDX-License-Identifier: Apache-2.0
// EvenRow: the fastest cut of a pipeline whose stages have equally many devices in a given order,
// for seeder `even`.
#pragma once

#include "planner/problem/problem.h"
#include "planner/seed/device_groups.h"
#include "planner/seed/linear_costs.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {

/// Seconds of messages and all-reduces, remembered for groups of devices that look alike.
class EvenLines {
 public:
  struct Line {
    double fixed = 0, per_byte = 0;
    double at(double bytes) const { return fixed + per_byte * bytes; }
  };
  /// Refers to `cluster`.
  explicit EvenLines(const Cluster& cluster)
      : cluster_(cluster), class_of_(host_classes(cluster)) {}
  /// Returns the seconds of an all-reduce over `devices`, which lie host by host.
  Line all_reduce(const std::vector<DeviceId>& devices);
  /// Returns the seconds of what replicas `from` send to replicas `to`, side by side.
  Line between(const std::vector<DeviceId>& from, const std::vector<DeviceId>& to);

 private:
  using Look = std::vector<std::tuple<int, int, int>>;  // class of host, kind, number of devices
  Look look_of(const std::vector<DeviceId>& devices) const;

  const Cluster& cluster_;
  std::vector<int> class_of_;  // by host
  std::map<Look, Line> reduces_;
  std::map<std::tuple<int, int, int, int, bool>, Line> links_;
};

/// A cut of the pieces into consecutive stages.
struct EvenCut {
  double seconds = 0;       ///< seconds of a micro-batch in the slowest stage or cut
  std::vector<int> bounds;  ///< first piece of each stage, then the number of pieces; empty: none
};

/// Stage i has devices [i * replicas, (i + 1) * replicas) of a row. A stage that would not fit
/// otherwise recomputes or, if it may, has its state in the memory of hosts. Its all-reduce is
/// spread over the micro-batches. Refers to `sums`.
class EvenRow {
 public:
  /// Looks at the first `stages` groups of `devices`. Cost: O(devices of those).
  EvenRow(const Problem& problem, const PieceSums& sums, EvenLines& lines,
          const std::vector<DeviceId>& devices, int replicas, int stages);

  /// Returns the cut into at most `stages` stages whose slowest stage or cut is fastest, within
  /// 0.1%. Stages may fill `part_of_memory` of each device, which may be above 1.
  /// Cost: O(stages x log pieces x iterations).
  EvenCut cut(int stages, std::int64_t micro_batches, double part_of_memory, bool offload);
  /// Returns whether `cut` finds one. Cost: O(stages x log pieces).
  bool has_cut(int stages, std::int64_t micro_batches, double part_of_memory, bool offload);

  const DeviceGroups& groups() const { return groups_; }

 private:
  struct Member {
    int kind = 0;
    double devices = 0, memory = 0;
  };
  struct Group {
    std::vector<Member> members;
    EvenLines::Line reduce, to_next;
  };
  void set(int stages, std::int64_t micro_batches, double part_of_memory, bool offload);
  double stage_seconds(int i, int j, int stage) const;
  double share_of(const Member& member, const Group& group, int i, int j, double rate) const;
  bool fits(int i, int j, int stage, double rate, StageHelp help) const;
  std::vector<int> cut_within(double seconds) const;
  int end_within(int begin, int stage, double seconds) const;

  const PieceSums& sums_;
  DeviceGroups groups_;
  std::vector<Group> costs_;  // by group
  int stages_ = 1;
  double micro_batches_ = 1, samples_ = 1, part_of_memory_ = 1;
  bool offload_ = false;
  std::int64_t batch_ = 1;
};

}  // namespace agpcs
