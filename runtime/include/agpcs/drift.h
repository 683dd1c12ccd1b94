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

/// What a rank shares of its steps since the last exchange.
struct RankStatistics {
  /// By quantity, the natural logarithm of measured over expected seconds. Measured is the mean
  /// over the steps. Both get 2% of the expected step added, so that what takes next to no part of
  /// a step cannot differ much. 0 where the plan expects nothing. Not a number, of computing: not
  /// measured since the last exchange.
  std::array<double, kQuantityCount> ratios{};
  /// Part of the wall time of computing in which the computing thread had its processor, by its own
  /// clock. 0: not known. Computations on an accelerator are timed by its events, and the time of
  /// the thread that asks for them says nothing; an idle rank's probe is not timed so either.
  double processor = 0;
  /// Part of the wall time of computing in which the kernel held the processor back: a quota of the
  /// rank's cgroup, or the host of a virtual machine. At most 1 - processor.
  double held = 0;
};

/// The words of a report that carry a rank's statistics. The first one has three figures, in fixed
/// point: the number of words belongs to what a plan expects of the network.
using StatisticsWords = std::array<double, kQuantityCount>;
StatisticsWords words_of(const RankStatistics& statistics);
/// Needs: `words` are those of `words_of`, or zeros.
RankStatistics statistics_of(const StatisticsWords& words);

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
  /// Returns the statistics to share, and starts anew. Without a step or probe since the last call,
  /// computing was not measured. `held_nanoseconds`: for how long the kernel
  /// held processors back from this process since the last call; what is longer than the computing
  /// thread waited does not count. Allocates nothing.
  RankStatistics take(std::int64_t held_nanoseconds = 0);

 private:
  struct Part {
    std::size_t instruction = 0;
    Quantity quantity = Quantity::kCompute;
  };
  std::vector<Part> parts_;
  std::array<double, kQuantityCount> expected_{};           ///< seconds; 0: nothing is expected
  double floor_ = 0;                                        ///< seconds
  std::vector<double> first_probes_;                        ///< seconds
  double probe_seconds_ = 0;                                ///< median of `first_probes_`
  std::array<std::int64_t, kQuantityCount> nanoseconds_{};  ///< sum over `steps_` steps
  std::int64_t processor_ = 0;   ///< nanoseconds of computing over `steps_` steps
  bool knows_processor_ = true;  ///< of each computation in `steps_` steps
  std::int64_t steps_ = 0;
};

/// Why a device computes at another speed, as far as its own clock and the kernel tell.
enum class DriftCause : std::uint8_t {
  kUnknown,  ///< nobody measures it, as on an accelerator; or it is not a change of computing
  kWork,     ///< its processor time changed: the work, or the speed of the processor
  kHeld,     ///< a quota, or the host of a virtual machine, holds its processor back
  kTaken,    ///< its processor time did not: other work has its processor, or it waits
};
std::string_view name_of(DriftCause cause);

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
  /// A device that needs another processor time for its work than is normal is reported once that
  /// has lasted for steps that are expected to take so long: what else its host does makes a
  /// processor faster, or slower, for seconds at a time. By a factor of more than 3 it is reported
  /// at once.
  double work_seconds = 30;
};

/// One thing that changed.
struct DriftChange {
  Quantity quantity = Quantity::kCompute;
  int rank = 0;  ///< kCompute, kSend: the rank; kAllReduce: the first rank of its stage
  /// Seconds now over normal seconds, relative to the other devices: what all devices have in
  /// common is not a change of one. Below 1: faster than normal; about 1: normal again.
  double factor = 1;
  std::int64_t since = 0;  ///< step at which it began, as far as is known
  DriftCause cause = DriftCause::kUnknown;
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
/// machine that is busy with other work slows them all. What is normal of an idle rank is known
/// from the beginning: its first probes. The threshold is twice the height that noise made a sum
/// reach in the last 1000 exchanges. A change of communication is not reported if changes of
/// computing explain it.
///
/// Where ranks know their processor time, a change of computing is one of the rank's own time (its
/// processor time, and the time for which the kernel held its processor back), as far as the wall
/// time bears it out, for the same processor time. What other work takes counts to the own time as
/// it lasts. Work that takes another processor time is a change once that has lasted. Communication
/// counts only in exchanges in which the ranks at both ends had their processors.
/// docs/design/reliability.md has details.
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
  bool suspects_links() const { return suspects(false); }
  /// Returns the same of computing: a reason to wait with a plan for what has changed so far.
  bool suspects_devices() const { return suspects(true); }
  /// Takes the present communication as normal, because the caller knows why it changed.
  void learn_communication_anew();
  /// Returns, by rank, the seconds that computing takes now over those that the plan expects.
  /// Deviations that count as normal are included, unless they do not say how fast the device is,
  /// because wall times were too different, or the rank computes for less than a fifth of a step:
  /// then only what has changed counts. 1 where the plan expects nothing.
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
    std::size_t points = 0;     ///< of `Series::recent` since then
  };
  /// One exchange of a series. Logarithms of ratios to what is expected; once normal is known, as
  /// if work took the processor time of the reference.
  struct Point {
    double wall = 0;       ///< wall time
    double own = 0;        ///< processor time, and the time for which the kernel held it back
    double processor = 0;  ///< processor time
    double work = 0;       ///< by how much work takes another processor time than that
    double value = 0;      ///< what the test sees
  };
  /// Most exchanges that the size of a change is computed from.
  static constexpr std::size_t kRecent = 8;
  /// Most exchanges from which is learned what is normal.
  static constexpr std::size_t kMostLearned = 32;
  /// The series of one quantity of one rank. Its values are logarithms of ratios, except seconds.
  struct Series {
    Quantity quantity = Quantity::kCompute;
    int stage = 0;
    bool idle = false;       ///< the rank's first probes are what is normal
    std::vector<int> ranks;  ///< the least value of these ranks counts; reports name the first one
    std::vector<int> ends;   ///< all ranks whose processors it needs
    double expected_seconds = 0, floor_seconds = 0;
    double normal = 0;      ///< value that counts as factor 1
    double reference = 0;   ///< value that counts as no change
    bool measured = false;  ///< in this exchange
    Point now;              ///< of this exchange
    Sum up, down;
    /// By how much work takes another processor time, and since when; exchange 0: it does not.
    Sum work;
    std::vector<double> works;   ///< `Point::work` of the first exchanges after normal was set
    std::vector<Point> recent;   ///< of the last few exchanges, newest last
    std::vector<Point> learned;  ///< since `reference` was set, as long as `learning`
    bool learning = true;
    std::int64_t changed_in = 0;  ///< exchange that last established a change; 0: no change yet
    std::int64_t began_in = 0;    ///< exchange in which that change began
    double change = 0;            ///< size of that change
    DriftCause cause = DriftCause::kUnknown;
    int held = 0;            ///< exchanges for which an alarm was held back
    std::int64_t since = 0;  ///< step at which the change began
    bool established = false;
    // Of computing, where the rank's own clock tells (`clocked`). `taken`: by how much the wall
    // time is longer than the own time, at normal, and lately.
    bool clocked = false;
    double normal_taken = 0, taken = 0;
    double own = 0, processor = 0;  ///< at the reference
    double away = 0;                ///< lately: by how much wall time is longer than processor time
    double wall_off = 0;            ///< by how much wall time is off in the last few exchanges
    bool steady = false;            ///< the wall times by which normal was learned were alike
    // Of communication: a change of computing has just been established, and explains as much.
    int excused = 0;  ///< exchanges that are left
    double excuse = 0;
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
  double in_common(double (*value)(const Series&)) const;
  void observe(Series& series, std::int64_t first_step);
  double off_of(Series& series) const;
  static double own_of(const Series& series);
  void read_clock(Series& series, const RankStatistics& statistics) const;
  void learn_clock(Series& series) const;
  void follow_clock(Series& series) const;
  void follow_work(Series& series, std::int64_t first_step);
  static bool learn_work(Series& series);
  static void take_work(Series& series, double more);
  bool establish_work(Series& series);
  void move_clock(Series& series, std::size_t count) const;
  DriftCause cause_of(const Series& series, std::size_t count) const;
  bool has_processor(int rank) const;
  bool have_processors(const Series& series) const;
  void excuse_communication(const Series& computing);
  void take_excused(Series& series) const;
  void add_up(Sum& sum, Quantity quantity, double off, std::int64_t first_step);
  void relearn(Series& series) const;
  void note_noise(Quantity quantity, double height);
  double dead_zone(Quantity quantity) const;
  double threshold(Quantity quantity) const;
  bool establish(Series& series);
  void move_to(Series& series, double level, const Sum& began) const;
  bool is_explained(const Series& series) const;
  bool is_held(Series& series) const;
  bool settle(Series& series);
  void list_established();
  bool suspects(bool computing) const;
  DriftChange change_of(const Series& series) const;

  int ranks_ = 0;
  double dead_zone_ = 0, clip_ = 0, threshold_ = 0;
  std::int64_t every_ = 0, exchanges_ = 0;
  double lasting_ = 0;  ///< exchanges for which a change of work must last
  double common_wall_ = 0, common_own_ = 0, common_work_ = 0;  ///< of computing, in this exchange
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
  /// An end was held back from its processor in nearly all rounds, so this says little of the link.
  bool held = false;
};

class Transport;
/// What one rank sends to another in a step, approximately.
struct LinkTraffic {
  int from = 0, to = 0;
  double bytes = 0, messages = 0;
};
/// Returns the traffic of all pairs of ranks that exchange anything under the plan, by from, to.
/// These are: neighbours in the ring of each stage (all-reduces of every algorithm except flows
/// count as rings), members of a team (what reductions inside an operator send does not count),
/// both ends of cuts and of messages of flows, and idle ranks with their neighbours in the report's
/// ring.
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
