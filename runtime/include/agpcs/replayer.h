// SPDX-License-Identifier: Apache-2.0
// Replayer: replays a plan, step after step, over a transport and an executor.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/step_times.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

struct ReplayOptions {
  /// Longest wait for any one instruction, another rank's computation before it included. A rank
  /// that dies is noticed much sooner, by the transport.
  std::chrono::milliseconds limit{300000};
  std::int64_t first_step = 0;  ///< the number of the first step: of its samples, and of Adam's
  std::size_t kept_steps = 64;  ///< steps whose times are kept
  bool prepared = false;        ///< the executor is prepared for this plan and rank already
  /// Ends the run when the loss is not finite, or a gradient before it is reduced: a loss that is
  /// infinite or no number spoils every parameter of every rank. One pass over each bucket's memory
  /// a step, and one over its sum where it travels in a wire type, which may not hold it; gradients
  /// in a GPU's memory are not looked at.
  bool check_finite = true;
  /// After so many steps one is recorded, where the transport and the executors of all ranks can,
  /// and replayed by one launch from then on (a CUDA graph); 0: never. The same on all ranks. A
  /// replayed step's loss is looked at when the step is over, and reported after it.
  int record_after = 0;
};

/// How steps run, where `ReplayOptions::record_after` asks for replays.
struct StepRecording {
  bool decided = false;   ///< it has been tried
  bool replayed = false;  ///< steps are replays
  /// Decided, and not replayed: of the lowest rank that cannot, "rank 1 (volta/1): node ..."; the
  /// same on all ranks.
  std::string why_not;
};

/// What one step did, seen from this rank.
struct StepReport {
  std::int64_t step = 0;
  double loss = 0;     ///< mean over the batch, the same on every rank
  double seconds = 0;  ///< wall time of the step on this rank
};

class Replayer {
 public:
  /// Verifies the plan, compares its digest over all ranks (a mismatch names both), opens groups,
  /// prepares the executor. `transport` and `executor` outlive the replayer. All ranks call it; on
  /// failure the transport is aborted.
  static Result<std::unique_ptr<Replayer>> create(const Plan& plan, int rank, Transport& transport,
                                                  Executor& executor,
                                                  const ReplayOptions& options = {});
  virtual ~Replayer() = default;
  /// One step: a flat loop over the program; no parsing, no allocation of its own, no negotiation.
  /// Computes, posts and waits on the calling thread alone.
  /// On failure the transport is aborted, the status names rank and instruction ("rank 1 (volta/1):
  /// recv c0 mb=3: ..."), and every later call fails with it.
  virtual Result<StepReport> run_step() = 0;

  /// What this rank says in the report of the next step, beside its loss (`report_words`, values),
  /// and the sums over all ranks of what was said in the last one. Word 0 travels in every step;
  /// the others in each step s with (s + 1) a multiple of `Training::statistics_every`, and are 0
  /// after the other steps.
  virtual std::vector<double>& to_report() = 0;
  virtual const std::vector<double>& reported() const = 0;

  virtual const StepRecording& recording() const = 0;

  /// The rank's instructions, in program order.
  virtual const std::vector<InstructionId>& instructions() const = 0;
  /// When they ran, in the last `kept_steps` steps.
  virtual const StepTimes& times() const = 0;
};

}  // namespace agpcs
