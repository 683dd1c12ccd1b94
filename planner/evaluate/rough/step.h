// SPDX-License-Identifier: Apache-2.0
// RoughStep: the time of a strategy's step by formula, without a simulation. Seeders and searches
// look at it before they decide what is worth an evaluation.
#pragma once

#include "planner/evaluate/rough/teams.h"
#include "planner/problem/problem.h"
#include "planner/problem/stage_timer.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {

/// The parts of a step's time, in seconds. A micro-batch's way is its forward passes to the last
/// stage and its backward passes back to the first, with the messages between.
struct RoughStep {
  double seconds = 0;                           ///< the whole step
  double slowest_stage = 0, sum_of_stages = 0;  ///< of one micro-batch
  double longest_way = 0;                       ///< of one micro-batch
  double slowest_cut = 0;  ///< of one micro-batch over all cuts: the busiest link, sender or
                           ///< receiver
  double late = 0;     ///< all-reduces, the loss's sum and updates, beyond the last backward pass
  double reduces = 0;  ///< all-reduces of the stage that spends most on them
  double busy = 0;     ///< computing, summed over devices
  int bottleneck = 0;  ///< the number of the slowest stage
  /// The stage that makes a 1F1B step longest by having too few micro-batches in flight: with more
  /// of them in every stage it would be shorter by kStarved of it, or more. -1: there is none.
  int starved = -1;
};

/// The least part of a rough step that counts as a promise of a shorter one.
inline constexpr double kStarved = 0.01;

/// Computes rough steps. Not for concurrent use. Refers to `problem`.
class RoughModel {
 public:
  explicit RoughModel(const Problem& problem);
  const Problem& problem() const { return problem_; }

  /// Returns the rough step. A step takes the longest way of a micro-batch through stages and cuts
  /// and back, then the pace for each other micro-batch, then what all-reduces and updates take
  /// beyond the last backward pass.
  /// * The pace is that of the busiest link, sender or receiver: a stage sends, and receives, for
  ///   one cut after another, as in the plan's streams. GPipe runs all forward passes and then all
  ///   backward passes, so each of the two has its own pace, no less than that of the slowest
  ///   stage. With 1F1B, a stage computes one micro-batch after the other. It waits for one to come
  ///   back before it lets another in, and for the messages of a pass, which it receives after the
  ///   pass before. With more micro-batches in flight than the textbook has, as many more are sent
  ///   before any comes back, and come back after the last was sent. Where backward passes are
  ///   parted, weight passes are on no micro-batch's way; a stage ends with them while gradients go
  ///   back through those before it.
  /// * Where stages are interleaved, a device computes for a micro-batch what all its stages do.
  ///   It waits for the first micro-batch and the last gradient, for each round of micro-batches
  ///   that fills or drains the pipeline, and then for messages as far as those in flight do not
  ///   hide them.
  /// * A stage sums gradients as its last backward pass makes them, in the best of a few buckets,
  ///   by the fastest algorithm. The all-reduces of all stages share links, as rings do. A later
  ///   stage ends before the first one by the backward part, two thirds, of the way between. The
  ///   loss is summed over all devices together with the last gradients. A stage that divides its
  ///   state sums them in half the time, and needs the other half after its update, which is that
  ///   of its part of the elements. Gradients of parameters
  ///   that stages share are summed after those of each stage alone.
  /// * Where replicas are teams, a pass takes what it takes in the simulator, with the team's
  ///   exchanges. Gradients are those of the member that has most. They are summed after the
  ///   exchanges at the end of a step.
  /// The strategy's buckets change nothing. `timers`: by stage, for its operators.
  /// Cost: O(blocks + readers of their tensors + devices of both ends of every cut).
  RoughStep step(const Strategy& strategy, const std::vector<StageTimer*>& timers);
  /// Returns what an all-reduce of a megabyte or more takes on `devices`, ascending: seconds, and
  /// seconds for each byte.
  std::pair<double, double> seconds_of_large_sums(const std::vector<DeviceId>& devices) {
    forget_if_many();
    const Line& line = reduce_line(devices);
    return {line.fixed_if_large, line.per_byte_if_large};
  }

 private:
  /// The seconds of the slowest device of a stage with one micro-batch.
  struct Passes {
    double forward = 0, backward = 0, both = 0;
    double weight = 0;    // what is put off of `backward`
    double step_end = 0;  // what teams exchange after the last backward pass of a step
    double way() const { return both - weight; }  // what a micro-batch's way there and back takes
  };
  /// Seconds with one micro-batch, by stage. On the first way all replicas send at once. Later only
  /// some do, which is taken as the mean of all at once and of each alone.
  struct Messages {
    std::vector<double> way, later_way;     // to the last stage and back
    std::vector<double> forward, backward;  // receiving for a pass, later
    double ahead = 0;  // by so many micro-batches in flight some stage is ahead of the textbook
  };
  struct Seconds {
    double first = 0, later = 0;  // all messages of a cut, one way
  };
  struct Passed {
    double latency = 0, seconds = 0;  // latency of a route; seconds at the pace of its slowest link
  };
  /// The seconds of an all-reduce, as two lines.
  struct Line {
    double fixed = 0, per_byte = 0;
    double fixed_if_large = 0, per_byte_if_large = 0;
    double at(double bytes) const;
    Line halved() const {
      return {fixed / 2, per_byte / 2, fixed_if_large / 2, per_byte_if_large / 2};
    }
  };
  /// Gradients that are made one after the other, the last of them `made` seconds after the pass
  /// began.
  struct Piece {
    double made = 0, bytes = 0;
  };
  /// The gradients of a stage and the cost of summing them.
  struct Reduction {
    GradientSum gradients;
    Line line;
    std::vector<Piece> pieces;
    bool scatters = false;  ///< they are summed after each micro-batch
    bool gathers = false;   ///< passes gather the parameters
  };
  /// The parameters that the same blocks read, several of them. Stages that share them sum their
  /// gradients after all else.
  struct Tied {
    std::vector<int> blocks;
    int first = 0;  // the block whose gradients `gradients_` counts them among
    GradientSum gradients;
  };
  /// The tensors of one block that the same other blocks read.
  struct Net {
    int from = 0;
    std::vector<int> to;
    double bytes = 0;         // bytes of one sample, one way
    int first = 0, last = 0;  // of all these blocks
  };
  /// What stage `from` sends to stage `to`: bytes of one sample, one way.
  struct CutSum {
    int from = 0, to = 0;
    double bytes = 0;
  };
  /// Seconds that links, then stages as senders, then stages as receivers are busy with a
  /// micro-batch.
  struct Lanes {
    std::vector<double> seconds;
    std::vector<std::size_t> busy;  // lanes with seconds
    void add(std::size_t lane, double more);
    double most() const;
    double empty(Lanes* into = nullptr, double factor = 1);
  };
  /// What a message adds to a lane.
  struct Load {
    std::size_t lane = 0;
    double seconds = 0;
  };
  using Loads = std::vector<Load>;
  /// The lanes that a ring loads, as the hops from each device to the next come to them.
  struct RingLane {
    std::size_t lane = 0;
    double bandwidth = 0;
    int hops = 0;
  };
  struct Ring {
    std::vector<DeviceId> devices;
    std::vector<RingLane> lanes;
  };
  /// What a cut between two stages loads, and what that depends on.
  struct KnownCut {
    std::vector<DeviceId> senders, receivers;
    std::vector<std::int64_t> sent, received;  // their shares
    double bytes = 0;
    double seconds = 0, alone = 0;  // of all messages, one way; of those of one replica alone
    Loads forward;                  // each lane once
    Loads back;                     // one by one, in their order
  };

  const std::vector<Passes>& compute(const Strategy& strategy,
                                     const std::vector<StageTimer*>& timers, RoughStep& rough);
  Passes compute_teams(const StageSpec& spec, const std::vector<TeamBody>& bodies, double& busy);
  const Messages& pass_cuts(const Strategy& strategy, const std::vector<Passes>& passes);
  double most_of_both() const;
  static double end_by_ways(const Strategy& strategy, const std::vector<Passes>& passes,
                            const Messages& messages, double longest_way, std::size_t s,
                            double slowest);
  static void add_waits_of_1f1b(const Strategy& strategy, const std::vector<Passes>& passes,
                                const Messages& messages, RoughStep& rough);
  void find_blocks(const Strategy& strategy);
  StageGradients gradients_of(int stage) const;
  double held_part(const Strategy& strategy, std::size_t stage);
  const std::vector<Reduction>& reductions(const Strategy& strategy,
                                           const std::vector<StageTimer*>& timers,
                                           const std::vector<Passes>& passes);
  double end_of_sums(const Reduction& reduction);
  void reduce(const Strategy& strategy, const std::vector<StageTimer*>& timers,
              const std::vector<Passes>& passes, const std::vector<double>& way, RoughStep& rough);
  static std::vector<double> kept_of_blocks(const Problem& problem);
  double copy_seconds(const StageSpec& spec, double kept, int kind, std::int64_t share) const;
  static double held_up(const Strategy& strategy, const std::vector<Passes>& passes,
                        const std::vector<double>& way, const RoughStep& rough);
  std::map<std::vector<int>, GradientSum> take_shared();
  void give_back_shared();
  bool is_shared(const Tied& tied) const;
  double reduce_shared(const Strategy& strategy,
                       const std::map<std::vector<int>, GradientSum>& shared, double begin);
  double most_update(const std::vector<DeviceId>& devices, const GradientSum& gradients,
                     bool in_host) const;
  const Ring& ring_of(const std::vector<DeviceId>& devices);
  void load_ring(const std::vector<DeviceId>& devices, double bytes, double seconds);
  void load_rings(const StageSpec& spec, double bytes, double seconds);
  const std::vector<CutSum>& cuts_of(const Strategy& strategy);
  KnownCut& known_cut(const StageSpec& senders, const StageSpec& receivers, double bytes);
  void pass_cut(const StageSpec& senders, const StageSpec& receivers, double bytes, KnownCut& cut);
  Seconds load_cut(const Strategy& strategy, int from, int to, double bytes, Lanes& back);
  template <typename F>
  void for_each_link(DeviceId from, DeviceId to, F f) const;
  Passed load_route(DeviceId from, DeviceId to, double bytes, Loads& loads) const;
  Passed load_members(const StageSpec& senders, std::size_t from, const StageSpec& receivers,
                      std::size_t to, double bytes, Loads& loads) const;
  const std::vector<int>& look_of(const std::vector<DeviceId>& devices);
  const Line& reduce_line(const std::vector<DeviceId>& devices);
  double report_seconds(const Strategy& strategy);
  void forget_if_many();

  const Problem& problem_;
  RoughTeams teams_;
  std::vector<GradientSum> gradients_;  // by block
  std::vector<double> backward_of_;     // by block: seconds of backward on the first device
  std::vector<OpId> first_op_;          // by block
  std::vector<double> kept_of_;         // by block, bytes of a sample; empty: none go to hosts
  std::vector<int> stage_of_block_;     // for the current strategy
  std::vector<int> run_end_;  // by block: the next one of another stage, or the number of blocks
  std::vector<Net> nets_;
  std::vector<Tied> tied_;
  Lanes cut_, forward_, backward_;  // empty between steps
  // Buffers of one step, kept for their memory.
  std::vector<Passes> passes_;  // by stage
  Messages messages_;
  std::vector<Reduction> reductions_;
  std::vector<double> ends_;
  std::vector<int> taken_;            // stages from whose blocks shared gradients are taken out
  std::vector<const Net*> last_net_;  // that a stage read, by stage
  std::vector<std::vector<CutSum>> cuts_from_;  // by stage
  std::vector<CutSum> cuts_;
  std::vector<double> ring_seconds_;  // by lane of a ring
  KnownCut small_cut_;
  Loads forward_loads_;
  std::vector<DeviceId> used_;
  std::vector<int> uses_;  // by device: stages that have it
  // The last report.
  std::vector<int> reported_uses_;
  double reported_ = 0;
  std::vector<int> alike_;  // classes of hosts
  std::vector<int> look_;
  std::map<std::vector<int>, Line> reduces_;    // by look
  std::map<std::vector<int>, double> reports_;  // by look
  std::size_t remembered_ = 0;                  // number of devices in both
  std::unordered_multimap<std::uint64_t, Ring> rings_;
  std::unordered_multimap<std::uint64_t, KnownCut> known_cuts_;
  std::size_t remembered_loads_ = 0;  // number of loads in both
};

/// Returns the seconds of the fastest algorithm that sums `bytes` over `devices` when alone.
double all_reduce_seconds(const Cluster& cluster, const std::vector<DeviceId>& devices,
                          std::int64_t bytes);
/// Returns the same for several numbers of bytes, in less time than one after the other.
std::vector<double> all_reduce_seconds(const Cluster& cluster, const std::vector<DeviceId>& devices,
                                       std::span<const std::int64_t> bytes);

/// Returns the gradients of each block.
std::vector<GradientSum> gradients_of_blocks(const Problem& problem);

}  // namespace agpcs
