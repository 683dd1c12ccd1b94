// SPDX-License-Identifier: Apache-2.0
// A Replayer replays a plan, step after step, over a transport and an executor.
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
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

struct ReplayOptions {
  /// Longest wait for any one instruction, including another rank's computation before it. The
  /// transport notices a dead rank much sooner.
  std::chrono::milliseconds limit{300000};
  std::int64_t first_step = 0;  ///< number of the first step, for its samples and for Adam
  /// Batches of a step. The programs run once for each; gradients add up on each rank, and are
  /// reduced and applied in the last one. The executor must know the same number.
  int batches = 1;
  std::size_t kept_steps = 64;  ///< steps whose times are kept
  bool prepared = false;        ///< the executor is already prepared for this plan and rank
  /// Ends the run when the loss or a gradient is not finite, before the gradient is reduced: one
  /// infinite value or NaN would spoil every parameter of every rank. The check reads
  /// each bucket's memory once a step, and also its sum if that travels in a wire type, which may
  /// overflow. It does not read gradients in a GPU's memory.
  bool check_finite = true;
};

/// What one step did, seen from this rank. Times of its instructions are those of its last batch.
struct StepReport {
  std::int64_t step = 0;
  double loss = 0;     ///< mean over the batch, the same on every rank
  double seconds = 0;  ///< wall time of the step on this rank
  /// The norm of all gradients before they were clipped, where the plan clips them.
  std::optional<double> gradient_norm = {};
};

class Replayer {
 public:
  /// Verifies the plan, compares its digest over all ranks (an error names both digests), opens
  /// groups and prepares the executor. `transport` and `executor` must outlive the replayer. All
  /// ranks call it. On failure it aborts the transport.
  static Result<std::unique_ptr<Replayer>> create(const Plan& plan, int rank, Transport& transport,
                                                  Executor& executor,
                                                  const ReplayOptions& options = {});
  virtual ~Replayer() = default;
  /// Runs one step: a flat loop over the program, without parsing, negotiation, or allocations of
  /// its own. The calling thread alone computes, posts and waits.
  /// On failure the transport is aborted, the status names rank and instruction ("rank 1 (volta/1):
  /// recv c0 mb=3: ..."), and every later call fails with this status.
  virtual Result<StepReport> run_step() = 0;
  /// Walks through the forward part of the program for every batch of the samples that the executor
  /// evaluates on (Executor::begin_evaluation), between two steps. Returns the sums over all ranks.
  /// All ranks call it, and have equally many batches. Failures are as those of `run_step`.
  virtual Result<Evaluation> evaluate() = 0;

  /// `to_report` holds the `report_words` values that this rank adds to the report of the next
  /// step, beside its loss; `reported` holds the sums of the last report over all ranks. Word 0
  /// travels in every step. The other words travel in each step s with (s + 1) a multiple of
  /// `Training::statistics_every`; after the other steps, `reported` holds 0 for them.
  virtual std::vector<double>& to_report() = 0;
  virtual const std::vector<double>& reported() const = 0;

  /// The rank's instructions, in program order.
  virtual const std::vector<InstructionId>& instructions() const = 0;
  /// Returns when they ran in the last `kept_steps` steps.
  virtual const StepTimes& times() const = 0;
};

}  // namespace agpcs
