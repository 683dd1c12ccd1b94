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
  std::array<std::int64_t, kQuantityCount> nanoseconds_{};  ///< of `steps_` steps
  std::int64_t steps_ = 0;
};

struct DriftOptions {
  /// Changes of speed up to this factor are not looked for: noise, and errors of the cost model.
  double tolerance = 1.25;
  /// Threshold of the cumulative sum: larger means fewer false alarms and a longer delay.
  /// docs/reliability.md has both, measured.
  double threshold = 1.5;
  /// Where the steps between two exchanges are expected to take less than this together, the
  /// threshold grows in proportion: what ends within a moment is no change of the hardware.
  double exchange_seconds = 0.1;
};

/// One thing that changed.
struct DriftChange {
  Quantity quantity = Quantity::kCompute;
  int rank = 0;  ///< kCompute, kSend: the rank; kAllReduce: the first rank of its stage
  /// Seconds now over seconds that are normal: those expected, corrected by what the first
  /// exchanges showed them to be off by within the tolerance. Below 1: faster than normal; about 1:
  /// normal again.
  double factor = 1;
  std::int64_t since = 0;  ///< step at which it began, as far as can be told
};

/// "volta/1 computes 2.4 times slower than planned, since step 120".
std::string describe(const Plan& plan, const DriftChange& change);

/// A two-sided Page-Hinkley (CUSUM) test for each rank and quantity, on what ranks share. A value,
/// deterministic: ranks that are given the same figures say the same.
///
/// Of a plan's first exchange nothing is concluded (its steps warm up). Computing is compared with
/// the plan: an offset of more than tolerance squared is told as a change; one within the tolerance
/// is taken for an error of the cost model, and is normal from then on. Communication includes
/// waiting for others, which no plan says of one rank: what the first exchanges show is normal. A
/// change of communication that changes of computing explain is not told. docs/reliability.md has
/// details.
class DriftDetector {
 public:
  explicit DriftDetector(const Plan& plan, const DriftOptions& options = {});
  /// Figures of all ranks, exchanged in the report of step `step`, of the steps before it. The
  /// changes that are now established and were not when last told, by quantity, then rank; empty
  /// mostly. One that went away is told once more, with a factor of about 1.
  std::vector<DriftChange> add(std::int64_t step, const std::vector<RankStatistics>& by_rank);
  /// All that is established: what differs from what was expected, now.
  const std::vector<DriftChange>& established() const { return established_; }
  /// What is there now is what is expected from now on (a plan was made for it, or none was
  /// better): established changes stay in the list, and only what changes from there is told.
  void accept();

 private:
  /// A cumulative sum and where it left 0.
  struct Sum {
    double value = 0;
    std::int64_t since = 0;     ///< step
    std::size_t exchanges = 0;  ///< since then
  };
  /// One rank's quantity. Logarithms of ratios, but for seconds.
  struct Series {
    Quantity quantity = Quantity::kCompute;
    int stage = 0;
    std::vector<int> ranks;  ///< the least of theirs counts; the first one is named
    double expected_seconds = 0, floor_seconds = 0;
    double normal = 0;     ///< that counts as factor 1
    double reference = 0;  ///< that counts as no change
    Sum up, down;
    std::vector<double> recent;   ///< the last few, newest last
    std::vector<double> learned;  ///< since `reference` was set, while it is learned
    bool first = true;            ///< `normal` is learned, too
    bool learning = true;
    std::int64_t changed_in = 0;  ///< exchange that last established a change; 0: none
    double change = 0;            ///< by how much it did
    int held = 0;                 ///< exchanges
    std::int64_t since = 0;       ///< step
    bool established = false;
  };
  void watch(const Plan& plan, int rank, Quantity quantity);
  void observe(Series& series, double value, std::int64_t first_step) const;
  void learn(Series& series, double value) const;
  bool alarms(Series& series) const;
  bool establish(Series& series) const;
  bool is_explained(const Series& series) const;
  bool is_held(Series& series) const;
  bool settle(Series& series);
  DriftChange change_of(const Series& series) const;

  double dead_zone_ = 0, clip_ = 0, threshold_ = 0;
  std::int64_t every_ = 0, exchanges_ = 0;
  std::vector<Series> series_;  ///< by quantity, then rank; those of which something is expected
  std::vector<DriftChange> established_;
};

/// One route between two ranks, probed.
struct LinkMeasurement {
  int from = 0, to = 0;
  double seconds_per_byte = 0, latency_seconds = 0;
};

class Transport;
/// The pairs of ranks (from, to) that the plan has exchange anything: neighbours in the ring of
/// each stage, both ends of cuts, messages of flows. Sorted.
std::vector<std::pair<int, int>> exchanging_ranks(const Plan& plan);

/// Times messages between the `exchanging_ranks`, one pair after the other. All ranks call it
/// between two steps; all get all results, by from, to. Groups of the plan are open. A pair takes
/// about 25 round trips, of up to a MiB: milliseconds to a tenth of a second. An error names the
/// pair, and the transport is aborted.
Result<std::vector<LinkMeasurement>> probe_links(const Plan& plan, Transport& transport,
                                                 std::chrono::milliseconds limit);

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
