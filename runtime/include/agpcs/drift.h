// SPDX-License-Identifier: Apache-2.0
// Drift: the ranks notice that the hardware is no longer what the plan expects, and report what
// changed.
//
// Each rank measures its steps (StepStatistics). Every `Training::statistics_every` steps, the
// ranks exchange their measurements within the step's report. Since all ranks have equal figures,
// every rank draws the same verdict at the same step (DriftDetector).
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

/// What a rank measures, in seconds a step. There are `kQuantityCount` (agpcs/plan.h) quantities.
enum class Quantity : std::uint8_t {
  kCompute,    ///< the rank's computations: forward and backward passes, and the update
  kAllReduce,  ///< all-reduces of its stage alone, from their turn to their end; the detector takes
               ///< the least over the stage's ranks: that of the rank that came last and did not
               ///< wait
  kSend,       ///< messages that the rank sends, from their turn to their end
};
std::string_view name_of(Quantity quantity);

/// By quantity, the natural logarithm of measured over expected seconds, as a rank shares it.
/// Measured is the mean over the steps since the last exchange. Both get 2% of the expected step
/// added, so that what takes next to no part of a step cannot differ much. 0 where the plan expects
/// nothing.
using RankStatistics = std::array<double, kQuantityCount>;

/// Collects one rank's steps between two exchanges.
class StepStatistics {
 public:
  /// Expected seconds come from the plan's `expect`.
  StepStatistics(const Plan& plan, int rank);
  /// Adds a step. Allocates nothing.
  void add(const InstructionTime* times);
  /// Adds what the executor's probe took; an idle rank calls this in place of `add`. The first few
  /// probes set the expected duration.
  void add_probe(double seconds);
  /// Returns the statistics to share, and starts anew. Allocates nothing.
  RankStatistics take();

 private:
  struct Part {
    std::size_t instruction = 0;
    Quantity quantity = Quantity::kCompute;
  };
  std::vector<Part> parts_;
  RankStatistics expected_{};                               ///< seconds; 0: nothing is expected
  double floor_ = 0;                                        ///< seconds
  std::vector<double> first_probes_;                        ///< seconds
  double probe_seconds_ = 0;                                ///< median of `first_probes_`
  std::array<std::int64_t, kQuantityCount> nanoseconds_{};  ///< sum over `steps_` steps
  std::int64_t steps_ = 0;
};

struct DriftOptions {
  /// Changes of speed up to this factor count as noise or as errors of the cost model, and are not
  /// looked for. For communication, the limit is the factor's square.
  double tolerance = 1.35;
  /// Threshold of the cumulative sum if there is no noise. A larger one means fewer false alarms
  /// and a longer delay; docs/design/reliability.md gives measurements of both.
  double threshold = 1.5;
  /// If the steps between two exchanges are expected to take less than this together, the threshold
  /// grows in proportion: a change that ends within a moment is not a change of the hardware.
  double exchange_seconds = 0.2;
};

/// One thing that changed.
struct DriftChange {
  Quantity quantity = Quantity::kCompute;
  int rank = 0;  ///< kCompute, kSend: the rank; kAllReduce: the first rank of its stage
  /// Seconds now over normal seconds, relative to the other devices: what all devices have in
  /// common is not a change of one. Below 1: faster than normal; about 1: normal again.
  double factor = 1;
  std::int64_t since = 0;  ///< step at which it began, as far as is known
};

/// Describes a change: "volta/1 computes 2.4 times slower than expected since step 120".
std::string describe(const Plan& plan, const DriftChange& change);

/// A two-sided Page-Hinkley (CUSUM) test for each rank and quantity, on the figures that ranks
/// share. It is deterministic: ranks that get the same figures report the same changes.
///
/// The first exchanges set what is normal: 4 of them (the first one is warm-up), and up to 33 if
/// they are noisy. A device that is then off from the others by more than the tolerance squared is
/// reported as a change; a smaller difference counts as an error of the cost model. From then on,
/// each series is compared with its normal, after subtraction of what all devices have in common: a
/// machine that is busy with other work slows them all. The threshold is twice the height that
/// noise made a sum reach in the last 1000 exchanges. A change of communication is not reported if
/// changes of computing explain it. docs/design/reliability.md has details.
class DriftDetector {
 public:
  explicit DriftDetector(const Plan& plan, const DriftOptions& options = {});
  /// Adds the figures of all ranks that were exchanged in the report of step `step`; they describe
  /// the steps before it. Returns the changes that were newly established or altered, by quantity,
  /// then rank; mostly there are none. A change that went away is reported once more, with a factor
  /// of about 1.
  std::vector<DriftChange> add(std::int64_t step, const std::vector<RankStatistics>& by_rank);
  /// Returns all established changes: what differs now from what was expected.
  const std::vector<DriftChange>& established() const { return established_; }
  /// Returns whether communication has lately taken much longer, or shorter, than normal. It is too
  /// early to report a change, but a reason to probe the links.
  bool suspects_links() const;
  /// Takes the present communication as normal, because the caller knows why it changed.
  void learn_communication_anew();
  /// Returns, by rank, the seconds that computing takes now over those that the plan expects.
  /// Deviations that count as normal are included. 1 where the plan expects nothing.
  std::vector<double> computing() const;
  /// Takes the present state as what is expected from now on (a plan was made for it, or no plan
  /// was better). Established changes stay in the list; only changes from here on are reported.
  void accept();

 private:
  /// A cumulative sum, and when it left 0.
  struct Sum {
    double value = 0, peak = 0;
    std::int64_t since = 0;     ///< step
    std::int64_t exchange = 0;  ///< the first exchange since the sum left 0
  };
  /// The series of one quantity of one rank. Its values are logarithms of ratios, except seconds.
  struct Series {
    Quantity quantity = Quantity::kCompute;
    int stage = 0;
    std::vector<int> ranks;  ///< the least value of these ranks counts; reports name the first one
    double expected_seconds = 0, floor_seconds = 0;
    double normal = 0;     ///< value that counts as factor 1
    double reference = 0;  ///< value that counts as no change
    double value = 0;      ///< value in this exchange
    Sum up, down;
    std::vector<double> recent;   ///< values of the last few exchanges, newest last
    std::vector<double> learned;  ///< values since `reference` was set, as long as `learning`
    bool learning = true;
    std::int64_t changed_in = 0;  ///< exchange that last established a change; 0: no change yet
    std::int64_t began_in = 0;    ///< exchange in which that change began
    double change = 0;            ///< size of that change
    int held = 0;                 ///< exchanges for which an alarm was held back
    std::int64_t since = 0;       ///< step at which the change began
    bool established = false;
  };
  /// The height that a sum reached before it fell back to 0.
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
  /// By quantity, then rank; only those for which the plan expects something.
  std::vector<Series> series_;
  std::array<bool, kQuantityCount> learned_{};
  /// By quantity: ascending in exchange, falling in height.
  std::array<std::vector<Height>, kQuantityCount> noise_;
  std::vector<DriftChange> established_;
};

/// The measured speed of one route between two ranks.
struct LinkMeasurement {
  int from = 0, to = 0;
  double seconds_per_byte = 0, latency_seconds = 0;
};

class Transport;
/// What one rank sends to another in a step, approximately.
struct LinkTraffic {
  int from = 0, to = 0;
  double bytes = 0, messages = 0;
};
/// Returns the traffic of all pairs of ranks that exchange anything under the plan, by from, to.
/// These are: neighbours in the ring of each stage (all-reduces of every algorithm except flows
/// count as rings), both ends of cuts and of messages of flows, and idle ranks with their
/// neighbours in the report's ring.
std::vector<LinkTraffic> link_traffic(const Plan& plan);

/// Times messages between the pairs of `link_traffic`, one pair after the other. All ranks call it
/// between two steps and get all results, by from, to. Needs: the plan's groups are open. A pair
/// takes about 25 round trips of up to 8 MiB: milliseconds to some tenths of a second. On an error,
/// which names the pair, the transport is aborted.
/// `glance_at` holds earlier measurements of links of this plan. If it is not empty, only these
/// links are probed, by two messages each of a size that took 10 ms at the earlier speed; the
/// slower one counts. This shows that a link has recovered.
Result<std::vector<LinkMeasurement>> probe_links(
    const Plan& plan, Transport& transport, std::chrono::milliseconds limit,
    const std::vector<LinkMeasurement>& glance_at = {});

struct LinkChange {
  int from = 0, to = 0;       ///< ranks
  double factor = 1;          ///< seconds a byte: now over before
  double latency_factor = 1;  ///< latency: now over before
};

/// Returns the links whose speed changed by a factor of more than `tolerance`, or whose latency did
/// (by at least 200 us), by from, to.
std::vector<LinkChange> changed_links(const std::vector<LinkMeasurement>& before,
                                      const std::vector<LinkMeasurement>& now,
                                      double tolerance = 1.5);
/// Describes a change: "link volta/0 -> volta/1: 4.02 times slower".
std::string describe(const Plan& plan, const LinkChange& change);

}  // namespace agpcs
