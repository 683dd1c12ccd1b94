// SPDX-License-Identifier: Apache-2.0
// Linear costs: the cost of a stage of consecutive pieces on a group of devices, for seeder
// `linear`.
#pragma once

#include "planner/evaluate/rough/step.h"
#include "planner/problem/problem.h"
#include "planner/seed/device_lattice.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace agpcs {

/// Returns the first block of each piece, then the number of blocks. There are at most about `most`
/// pieces: long graphs are cut only at the cheapest place of each of so many equal parts of the
/// FLOPs.
std::vector<int> piece_bounds(const BlockGraph& blocks, int most);

/// What a stage does where its devices lack memory.
struct StageHelp {
  bool recompute = false;
  bool in_host = false;  ///< the optimizer's state is in the memory of hosts
  bool moves = false;    ///< activations are there
};

/// What help in the memory of hosts adds to the seconds of a micro-batch, infinite if there is
/// none.
struct HostSeconds {
  double state = std::numeric_limits<double>::infinity();
  double activations = std::numeric_limits<double>::infinity();
};

/// Returns the seconds of a micro-batch in a stage that would take `seconds` if it kept all, with
/// the help that takes least of those for which `fits(help)` holds; infinite if none does. A stage
/// that fits has no help.
template <typename Fits>
double seconds_with_help(double seconds, const HostSeconds& hosts, Fits fits) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const double repeated = seconds * 4 / 3;  // backward takes about twice as long as forward
  const double moved = seconds + hosts.activations;
  if (fits(StageHelp{})) return seconds;
  double least = fits(StageHelp{true}) ? repeated : kNever;
  const auto lower = [&](double helped, StageHelp help) {
    if (helped < least && fits(help)) least = helped;
  };
  lower(seconds + hosts.state, {false, true});
  lower(moved, {false, false, true});
  lower(repeated + hosts.state, {true, true});
  lower(moved + hosts.state, {false, true, true});
  return least;
}

/// The figures of consecutive runs of blocks, as prefix sums.
class PieceSums {
 public:
  struct Line {
    double fixed = 0, per_sample = 0;
  };

  /// `bounds`: the first block of each piece, and the number of blocks. Cost: O(operators x kinds).
  PieceSums(const Problem& problem, std::vector<int> bounds);

  int pieces() const { return static_cast<int>(bounds_.size()) - 1; }
  const std::vector<int>& bounds() const { return bounds_; }
  /// Returns the bytes of a sample's tensors that are alive before a piece.
  double cut_bytes(int piece) const;
  /// Returns the bytes of parameters, gradients and optimizer state of all pieces; without that
  /// state if it may be in the memory of hosts.
  double resident_bytes(bool in_host = false) const {
    return resident_.back() - (in_host ? state_.back() : 0);
  }
  /// Returns the seconds of both passes of pieces [i, j) on a device of `kind`.
  Line seconds(int kind, int i, int j) const;
  /// Returns the bytes of the gradients of pieces [i, j) as they travel.
  double gradient_bytes(int i, int j) const;
  /// Returns the bytes that a device with `share` samples of each micro-batch needs for pieces
  /// [i, j), with `in_flight` micro-batches between their passes. `several`: gradients are summed.
  /// All that is alive before piece i counts as received.
  double memory(int i, int j, double share, double in_flight, bool several,
                StageHelp help = {}) const;
  /// Returns how many seconds longer the update of pieces [i, j) takes on a device of `kind` if the
  /// optimizer's state is in the memory of its host; infinite if it cannot be there.
  double copy_seconds(int kind, int i, int j) const;
  /// Returns those of the slowest of `members`, which have kinds.
  template <typename Members>
  double copy_seconds(const Members& members, int i, int j) const {
    double slowest = 0;
    for (const auto& member : members) slowest = std::max(slowest, copy_seconds(member.kind, i, j));
    return slowest;
  }
  /// Returns how many seconds longer the passes of a micro-batch over pieces [i, j) take on a
  /// device of `kind` with `share` samples, which takes `seconds` for them, if its activations are
  /// in the memory of its host: what copies take longer than passes. Infinite if they cannot be
  /// there.
  double move_seconds(int kind, int i, int j, double share, double seconds) const;

 private:
  friend class LinearCosts;
  void sum_seconds();
  void sum_gradients();
  void sum_memory();
  void find_copies();
  double window(int i, int j) const;
  /// Returns the bytes of `memory`, as a line over `share`; `received`: bytes of a sample.
  Line memory_line(int i, int j, double received, double in_flight, bool several,
                   StageHelp help) const;

  const Problem& problem_;
  std::vector<int> bounds_;
  std::int64_t samples_ = 1;                // samples for which times and memory are taken
  std::vector<std::vector<Line>> seconds_;  // by kind, prefix sums
  std::vector<double> gradients_;           // bytes that travel, prefix sums
  std::vector<double> held_, rounded_;      // bytes of gradients in memory, prefix sums
  std::vector<double> resident_;            // bytes, prefix sums
  std::vector<double> state_;               // the optimizer's part of them
  std::vector<double> copies_;              // by kind: seconds per byte of state in hosts
  std::vector<double> moves_;               // by kind: seconds per byte of activations there
  std::vector<double> kept_;      // bytes of a sample, without what is received, prefix sums
  std::vector<double> received_;  // bytes of a sample that a piece keeps of what it receives
  std::vector<std::vector<double>> extra_;  // bytes of a sample beyond what is kept: [first, last]
};

/// The costs of stages of PieceSums on the groups of a lattice for M micro-batches. A stage takes
/// what its fastest split of samples takes, where mixed groups may split a sample, plus its
/// all-reduce spread over the micro-batches. If it would not fit otherwise, it recomputes, or has
/// its state or activations in the memory of hosts if it may. It takes forever if it does not fit
/// at all: parameters, gradients, optimizer state, what min(M, later + 1) micro-batches keep, and
/// the most that a piece needs besides.
class LinearCosts {
 public:
  /// `model` looks up the all-reduces of groups that look alike, also those of other lattices.
  LinearCosts(const PieceSums& sums, const DeviceLattice& lattice, RoughModel& model);
  /// Sets the number of micro-batches, the part of their devices that stages may fill, and whether
  /// they may have their state or activations in the memory of hosts.
  void set(std::int64_t micro_batches, double part_of_memory, bool offload = false);

  /// As in ChainProblem.
  double stage_seconds(int i, int j, int group, int later,
                       double most = std::numeric_limits<double>::infinity()) const;
  /// Returns the seconds of a cut: its bytes over the link between the two places at the boundary.
  double cut_seconds(int piece, int exit, int entry) const;
  /// Returns a lower bound on the slowest stage of pieces [0, i) on what is handed out in `state`.
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
  double share_of(const Member& member, int i, int j, double rate) const;
  bool fits(int i, int j, const Members& group, double rate, int later, StageHelp help) const;
  Line link_between(const LinearPlace& exit, const LinearPlace& entry) const;
  static Line line_of(double at_1_mib, double at_32_mib);

  const PieceSums& sums_;
  const Problem& problem_;
  std::vector<Members> groups_, before_;  // by group; by state
  std::vector<Line> all_reduce_;          // by group
  std::size_t places_ = 0;
  std::vector<Line> links_;  // between places: from exit, then to entry
  double micro_batches_ = 1, samples_ = 1, part_of_memory_ = 1;
  bool offload_ = false;
};

}  // namespace agpcs
