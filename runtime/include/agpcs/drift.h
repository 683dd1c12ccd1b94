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

/// Natural logarithm of measured over expected seconds, by quantity, as a rank shares it: the
/// median over the steps since the last exchange. 0 where nothing is expected.
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
  std::array<std::vector<double>, kQuantityCount> ratios_;  ///< reserved for statistics_every steps
};

struct DriftOptions {
  /// Changes of speed up to this factor are not looked for: noise, and errors of the cost model.
  double tolerance = 1.25;
  /// Threshold of the cumulative sum: larger means fewer false alarms and a longer delay.
  /// docs/reliability.md has both, measured.
  double threshold = 2.0;
};

/// One thing that changed.
struct DriftChange {
  Quantity quantity = Quantity::kCompute;
  int rank = 0;            ///< kCompute, kSend: the rank; kAllReduce: the first rank of its stage
  double factor = 1;       ///< seconds now over seconds expected; below 1: faster
  std::int64_t since = 0;  ///< step at which it began, as far as can be told
};

/// A two-sided Page-Hinkley (CUSUM) test for each rank and quantity, on what ranks share. A value,
/// deterministic: ranks that are given the same figures say the same.
class DriftDetector {
 public:
  DriftDetector(const Plan& plan, const DriftOptions& options = {});
  /// Figures of all ranks, exchanged after step `step`. The changes that are now established and
  /// were not when last told; empty mostly.
  std::vector<DriftChange> add(std::int64_t step, const std::vector<RankStatistics>& by_rank);
  /// All that is established: what differs from what was expected, now.
  const std::vector<DriftChange>& established() const { return established_; }
  /// What is there now is what is expected from now on (a plan was made for it, or none was
  /// better).
  void accept();

 private:
  struct Series {
    double reference = 0;  ///< log ratio that counts as no change
    double up = 0, down = 0;
    std::int64_t up_since = 0, down_since = 0;
    std::vector<double> recent;  ///< since the change began, for its factor
  };
  DriftOptions options_;
  std::vector<std::vector<int>> stage_ranks_;
  std::vector<std::array<Series, kQuantityCount>> series_;  ///< by rank
  std::vector<DriftChange> established_;
};

/// One route between two ranks, probed.
struct LinkMeasurement {
  int from = 0, to = 0;
  double seconds_per_byte = 0, latency_seconds = 0;
};

class Transport;
/// Times messages between each two ranks that the plan has exchange anything (cuts, ring
/// neighbours), one pair after the other. All ranks call it between two steps; all get all results,
/// by from, to. Groups of the plan are open. Seconds: a few round trips of up to a MiB a pair.
Result<std::vector<LinkMeasurement>> probe_links(const Plan& plan, Transport& transport,
                                                 std::chrono::milliseconds limit);

}  // namespace agpcs
