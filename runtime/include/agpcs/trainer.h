// SPDX-License-Identifier: Apache-2.0
// A Trainer runs a training job on one rank: it replays the plan, watches for drift, and moves to a
// better plan between two steps, so that no step is lost.
#pragma once

#include <agpcs/drift.h>
#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/replanner.h>
#include <agpcs/replayer.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

/// Options that say when a better plan is worth moving to. Only those of rank 0 count.
struct SwitchOptions {
  double horizon_seconds = 3600;  ///< a move must pay for itself within this time
  int most_switches = 2;  ///< most moves in any `window_seconds`, so that plans do not alternate
  double window_seconds = 600;
  double least_gain = 0.03;  ///< part of the running plan's step that a new one must save
};

/// What happened between two steps, for the log.
struct TrainerEvent {
  enum class Kind : std::uint8_t {
    kDrift,     ///< every rank: `changes` were established; `before` and `now` show the links
    kProposed,  ///< rank 0: `plan` is better
    kKept,      ///< rank 0: the running plan stays, because of `why`
    kSwitched,  ///< every rank: `plan` runs from step `step` on
  };
  Kind kind = Kind::kDrift;
  std::int64_t step = 0;  ///< the next step
  std::vector<DriftChange> changes;
  std::vector<LinkMeasurement> before, now;
  const Plan* plan = nullptr;
  /// kProposed, kKept: step times of the running plan and of the new plan on the hardware as it is
  /// now.
  double running_step_seconds = 0, step_seconds = 0;
  double seconds = 0;            ///< kSwitched: duration of the move
  std::int64_t bytes_moved = 0;  ///< kSwitched: bytes that all ranks sent over the network
  std::string why;
};

struct TrainerOptions {
  ReplayOptions replay;
  DriftOptions drift;
  SwitchOptions switching;
  /// Rank 0's source of better plans; nullptr: drift is reported, and the plan stays.
  Replanner* replanner = nullptr;
  std::function<void(const TrainerEvent&)> on_event;
};

using ExecutorFactory = std::function<Result<std::unique_ptr<Executor>>()>;

class Trainer {
 public:
  /// Does what `Replayer::create` does. `transport` must outlive the trainer and serves all plans
  /// of the job. `make_executor` is called once now and again for each plan that the job moves to.
  /// Before the first step, the caller may set the first executor's state (from a checkpoint).
  static Result<std::unique_ptr<Trainer>> create(const Plan& plan, int rank, Transport& transport,
                                                 ExecutorFactory make_executor,
                                                 const TrainerOptions& options = {});
  virtual ~Trainer() = default;
  /// Runs one step, after anything that is due between two steps. All ranks call it equally often.
  virtual Result<StepReport> run_step() = 0;
  /// Does what `Replayer::evaluate` does, under the running plan.
  virtual Result<Evaluation> evaluate() = 0;
  /// Asks all ranks to stop; all learn it after the same step. A signal handler may call it.
  virtual void ask_to_stop() = 0;
  /// Returns whether a rank has asked to stop, as all ranks know since the last step.
  virtual bool stops() const = 0;
  virtual std::int64_t next_step() const = 0;
  virtual const Plan& plan() const = 0;  ///< the running plan
  virtual Executor& executor() = 0;
  virtual const Replayer& replayer() const = 0;
};

}  // namespace agpcs
