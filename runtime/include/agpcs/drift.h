// SPDX-License-Identifier: Apache-2.0
// Drift: noticing that the hardware no longer is what the plan expects, and saying what changed.
//
// Each rank measures its steps (StepStatistics). Every so many steps, as the plan says
// (`Training::statistics_every`), the ranks exchange what they measured within the step's report;
// from equal figures every rank draws the same verdict at the same step (DriftDetector).
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/step_times.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// What a rank measures, in seconds a step; `kQuantityCount` (agpcs/plan.h) of them.
enum class Quantity : std::uint8_t {
  kCompute,    ///< the rank's computations: forward and backward passes, and the update
  kAllReduce,  ///< all-reduces of its stage, from their turn to their end; the detector takes the
               ///< least of the stage's ranks, that of who came last and did not wait
  kSend,       ///< messages that it sends, from their turn to their end
};
std::string_view name_of(Quantity quantity);

/// Natural logarithm of measured over expected seconds, by quantity, as a rank shares it; measured
/// is the mean over the steps since the last exchange, 2% of the expected step are added to both
/// (what takes next to nothing of a step cannot differ much). 0 where nothing is expected.
using RankStatistics = std::array<double, kQuantityCount>;

/// Collects one rank's steps between two exchanges.
class StepStatistics {
 public:
  /// Expected seconds come from the plan's `expect`.
  StepStatistics(const Plan& plan, int rank);
  /// Adds a step. Allocates nothing.
  void add(const InstructionTime* times);
  /// Of an idle rank, in place of steps: what the executor's probe took. What the first ones took
  /// counts as the expected.
  void add_probe(double seconds);
  /// What to share; starts anew. Allocates nothing.
  RankStatistics take();

 private:
  struct Part {
    std::size_t instruction = 0;
    Quantity quantity = Quantity::kCompute;
  };
  std::vector<Part> parts_;
  RankStatistics expected_{};                               ///< seconds; 0: none
  double floor_ = 0;                                        ///< seconds
  std::vector<double> first_probes_;                        ///< seconds
  double probe_seconds_ = 0;                                ///< their median
  std::array<std::int64_t, kQuantityCount> nanoseconds_{};  ///< of `steps_` steps
  std::int64_t steps_ = 0;
};

struct DriftOptions {
  /// Changes of speed up to this factor are not looked for (of communication: up to its square):
  /// noise, and errors of the cost model.
  double tolerance = 1.35;
  /// Threshold of the cumulative sum where there is no noise: larger means fewer false alarms and a
  /// longer delay. docs/reliability.md has both, measured.
  double threshold = 1.5;
  /// Where the steps between two exchanges are expected to take less than this together, the
  /// threshold grows in proportion: what ends within a moment is no change of the hardware.
  double exchange_seconds = 0.2;
};

/// One thing that changed.
struct DriftChange {
  Quantity quantity = Quantity::kCompute;
  int rank = 0;  ///< kCompute, kSend: the rank; kAllReduce: the first rank of its stage
  /// Seconds now over seconds that are normal, beside the other devices: what all devices have in
  /// common is no change of one. Below 1: faster than normal; about 1: normal again.
  double factor = 1;
  std::int64_t since = 0;  ///< step at which it began, as far as can be told
};

/// "volta/1 computes 2.4 times slower than planned, since step 120".
std::string describe(const Plan& plan, const DriftChange& change);

/// A two-sided Page-Hinkley (CUSUM) test for each rank and quantity, on what ranks share. A value,
/// deterministic: ranks that are given the same figures say the same.
///
/// The first exchanges show what is normal: 4 of them (the first one warms up), up to 33 where they
/// are noisy. A device that is off by more than tolerance squared then, beside the others, is told
/// as a change; less is taken for an error of the cost model. From then on each is compared with
/// its normal, after what all devices have in common is taken off: a machine that is busy with
/// other work slows them all. The threshold is twice the height that noise made a sum reach in the
/// last 1000 exchanges. A change of communication that changes of computing explain is not told.
/// docs/reliability.md has details.
class DriftDetector {
 public:
  explicit DriftDetector(const Plan& plan, const DriftOptions& options = {});
  /// Figures of all ranks, exchanged in the report of step `step`, of the steps before it. The
  /// changes that are now established and were not when last told, by quantity, then rank; empty
  /// mostly. One that went away is told once more, with a factor of about 1.
  std::vector<DriftChange> add(std::int64_t step, const std::vector<RankStatistics>& by_rank);
  /// All that is established: what differs from what was expected, now.
  const std::vector<DriftChange>& established() const { return established_; }
  /// Whether communication has taken much longer, or shorter, than normal lately: too early to
  /// tell, but a reason to probe the links.
  bool suspects_links() const;
  /// Communication is normal as it is now: why it changed is known from elsewhere.
  void learn_communication_anew();
  /// By rank: seconds of computing as they are now over those that the plan expects, what is normal
  /// included; 1 where nothing is expected.
  std::vector<double> computing() const;
  /// What is there now is what is expected from now on (a plan was made for it, or none was
  /// better): established changes stay in the list, and only what changes from there is told.
  void accept();

 private:
  /// A cumulative sum and where it left 0.
  struct Sum {
    double value = 0, peak = 0;
    std::int64_t since = 0;     ///< step
    std::int64_t exchange = 0;  ///< the first one
  };
  /// One rank's quantity. Logarithms of ratios, but for seconds.
  struct Series {
    Quantity quantity = Quantity::kCompute;
    int stage = 0;
    std::vector<int> ranks;  ///< the least of theirs counts; the first one is named
    double expected_seconds = 0, floor_seconds = 0;
    double normal = 0;     ///< that counts as factor 1
    double reference = 0;  ///< that counts as no change
    double value = 0;      ///< of this exchange
    Sum up, down;
    std::vector<double> recent;   ///< the last few, newest last
    std::vector<double> learned;  ///< since `reference` was set, while it is learned
    bool learning = true;
    std::int64_t changed_in = 0;  ///< exchange that last established a change; 0: none
    std::int64_t began_in = 0;    ///< exchange in which that began
    double change = 0;            ///< by how much it did
    int held = 0;                 ///< exchanges
    std::int64_t since = 0;       ///< step
    bool established = false;
  };
  /// That a sum reached before it fell back to 0.
  struct Height {
    std::int64_t exchange = 0;
    double height = 0;
  };
  void watch(const Plan& plan, int rank, Quantity quantity);
  void read(const std::vector<RankStatistics>& by_rank);
  void learn_normal(Quantity quantity);
  bool is_learned(Quantity quantity) const { return learned_[static_cast<std::size_t>(quantity)]; }
  std::vector<DriftChange> compare_with_plan(std::int64_t step);
  double in_common() const;
  void observe(Series& series, double common, std::int64_t first_step);
  void add_up(Sum& sum, Quantity quantity, double off, std::int64_t first_step);
  void relearn(Series& series) const;
  void note_noise(Quantity quantity, double height);
  double dead_zone(Quantity quantity) const;
  double threshold(Quantity quantity) const;
  bool establish(Series& series);
  bool is_explained(const Series& series) const;
  bool is_held(Series& series) const;
  bool settle(Series& series);
  void list_established();
  DriftChange change_of(const Series& series) const;

  int ranks_ = 0;
  double dead_zone_ = 0, clip_ = 0, threshold_ = 0;
  std::int64_t every_ = 0, exchanges_ = 0;
  std::vector<Series> series_;  ///< by quantity, then rank; those of which something is expected
  std::array<bool, kQuantityCount> learned_{};
  std::array<std::vector<Height>, kQuantityCount> noise_;  ///< by exchange, of falling height
  std::vector<DriftChange> established_;
};

/// One route between two ranks, probed.
struct LinkMeasurement {
  int from = 0, to = 0;
  double seconds_per_byte = 0, latency_seconds = 0;
};

class Transport;
/// What one rank sends another in a step, about.
struct LinkTraffic {
  int from = 0, to = 0;
  double bytes = 0, messages = 0;
};
/// Of the pairs of ranks that the plan has exchange anything: neighbours in the ring of each stage
/// (all-reduces of any algorithm but flows count as rings), both ends of cuts and of messages of
/// flows; idle ranks with their neighbours in the report's ring. By from, to.
std::vector<LinkTraffic> link_traffic(const Plan& plan);

/// Times messages between the pairs of `link_traffic`, one after the other. All ranks call it
/// between two steps; all get all results, by from, to. Groups of the plan are open. A pair takes
/// about 25 round trips, of up to 8 MiB: milliseconds to some tenths of a second. An error names
/// the pair, and the transport is aborted.
/// With `glance_at`, links of this plan as they were measured: these alone, by two messages each
/// that took 10 ms then, of which the slower one counts. That shows a link that recovered.
Result<std::vector<LinkMeasurement>> probe_links(
    const Plan& plan, Transport& transport, std::chrono::milliseconds limit,
    const std::vector<LinkMeasurement>& glance_at = {});

struct LinkChange {
  int from = 0, to = 0;       ///< ranks
  double factor = 1;          ///< seconds a byte, now over before
  double latency_factor = 1;  ///< latency, now over before
};

/// The links that are slower or faster by more than `tolerance`, or whose latency is (by at least
/// 200 us); by from, to.
std::vector<LinkChange> changed_links(const std::vector<LinkMeasurement>& before,
                                      const std::vector<LinkMeasurement>& now,
                                      double tolerance = 1.5);
/// "link volta/0 -> volta/1: 4.02 times slower".
std::string describe(const Plan& plan, const LinkChange& change);

}  // namespace agpcs
