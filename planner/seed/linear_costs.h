// SPDX-License-Identifier: Apache-2.0
// Linear costs: what a stage of consecutive pieces costs on a group of devices, for seeder
// `linear`.
#pragma once

#include "planner/device_lattice.h"
#include "planner/problem.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace agpcs {

/// Figures of consecutive runs of blocks, as prefix sums.
class PieceSums {
 public:
  /// `bounds`: the first block of each piece, and the number of blocks. Cost: O(operators x kinds).
  PieceSums(const Problem& problem, std::vector<int> bounds);

  int pieces() const { return static_cast<int>(bounds_.size()) - 1; }
  const std::vector<int>& bounds() const { return bounds_; }
  /// Bytes of a sample's tensors that are alive before a piece.
  double cut_bytes(int piece) const;
  /// Of parameters, gradients and optimizer state of all pieces.
  double resident_bytes() const { return resident_.back(); }

 private:
  friend class LinearCosts;
  void sum_seconds();
  void sum_gradients();
  void sum_memory();

  struct Line {
    double fixed = 0, per_sample = 0;
  };
  const Problem& problem_;
  std::vector<int> bounds_;
  std::int64_t samples_ = 1;                // at which times and memory are taken
  std::vector<std::vector<Line>> seconds_;  // by kind, prefix sums
  std::vector<double> gradients_;           // bytes that travel, prefix sums
  std::vector<double> held_, rounded_;      // bytes of gradients in memory, prefix sums
  std::vector<double> resident_;            // bytes, prefix sums
  std::vector<double> kept_;      // bytes of a sample, prefix sums; without what is received
  std::vector<double> received_;  // bytes of a sample that a piece keeps of what it receives
  std::vector<std::vector<double>> extra_;  // bytes of a sample beyond what is kept: [first, last]
};

/// The costs of stages of PieceSums on the groups of a lattice for M micro-batches. A stage takes
/// what its fastest split of samples takes, fractions of a sample allowed in mixed groups, and its
/// all-reduce spread over the micro-batches; it recomputes where it would not fit otherwise, and
/// takes forever where it does not fit at all: parameters, gradients, optimizer state, what min(M,
/// later + 1) micro-batches keep, and the most that a piece needs besides.
class LinearCosts {
 public:
  LinearCosts(const PieceSums& sums, const DeviceLattice& lattice);
  /// The costs hold for that many, and stages may fill that part of their devices.
  void set(std::int64_t micro_batches, double part_of_memory);

  double stage_seconds(int i, int j, int group, int later) const;
  /// A cut takes its bytes over the link between the two places at the boundary.
  double cut_seconds(int piece, int exit, int entry) const;
  /// Of the slowest stage of pieces [0, i) on what is handed out in `state`, at least.
  double least_before(int i, int state) const;

 private:
  struct Line {
    double fixed = 0, slope = 0;
    double at(double bytes) const { return fixed + slope * bytes; }
  };
  struct Member {
    int kind = 0;
    double devices = 0;
  };
  using Members = std::vector<Member>;
  Members members_of(const std::vector<DeviceId>& devices) const;
  bool fits(int i, int j, const Members& group, double rate, int later, bool recompute) const;
  Line link_between(const LinearPlace& exit, const LinearPlace& entry) const;
  static Line line_of(double at_1_mib, double at_32_mib);

  const PieceSums& sums_;
  const Problem& problem_;
  std::vector<Members> groups_, before_;       // by group; by state
  std::vector<Line> all_reduce_;               // by group
  std::map<std::pair<int, int>, Line> links_;  // between places
  double micro_batches_ = 1, samples_ = 1, part_of_memory_ = 1;
};

}  // namespace agpcs
