// SPDX-License-Identifier: Apache-2.0
// Trainer: a training job on one rank: replays the plan, watches for drift, and moves to a better
// plan between two steps, without losing one.
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

/// When a better plan is worth moving to. Rank 0's to judge.
struct SwitchOptions {
  double horizon_seconds = 3600;  ///< within which a move must pay for itself
  int most_switches = 2;          ///< in any `window_seconds`, so that nothing flaps
  double window_seconds = 600;
};

/// What happened between two steps, for the log.
struct TrainerEvent {
  enum class Kind : std::uint8_t {
    kDrift,     ///< every rank: `changes` were established, `before` and `now` tell of the links
    kProposed,  ///< rank 0: `plan` is better
    kKept,      ///< rank 0: the running plan stays: `why`
    kSwitched,  ///< every rank: `plan` runs from step `step` on
    kRecorded,  ///< every rank, once a plan, where asked for: steps are replayed, or `why` not
  };
  Kind kind = Kind::kDrift;
  std::int64_t step = 0;  ///< the next one
  std::vector<DriftChange> changes;
  std::vector<LinkMeasurement> before, now;
  const Plan* plan = nullptr;
  /// kProposed, kKept: of the running plan on the hardware as it is now, and of the new one.
  double running_step_seconds = 0, step_seconds = 0;
  double seconds = 0;            ///< kSwitched: that the move took
  std::int64_t bytes_moved = 0;  ///< kSwitched: over the network, by all ranks
  std::string why;
};

struct TrainerOptions {
  ReplayOptions replay;
  DriftOptions drift;
  SwitchOptions switching;
  /// On rank 0; nullptr: drift is told, the plan stays.
  Replanner* replanner = nullptr;
  std::function<void(const TrainerEvent&)> on_event;
};

using ExecutorFactory = std::function<Result<std::unique_ptr<Executor>>()>;

class Trainer {
 public:
  /// As `Replayer::create`. `transport` outlives the trainer, and serves all plans of the job.
  /// `make_executor` is called once now, and again for each plan that is moved to. The state of the
  /// first executor may be set (from a checkpoint) before the first step.
  static Result<std::unique_ptr<Trainer>> create(const Plan& plan, int rank, Transport& transport,
                                                 ExecutorFactory make_executor,
                                                 const TrainerOptions& options = {});
  virtual ~Trainer() = default;
  /// One step, and before it whatever is due between two steps. All ranks call it equally often.
  virtual Result<StepReport> run_step() = 0;
  /// Asks all ranks to stop: they see it after the same step. May be called by a signal handler.
  virtual void ask_to_stop() = 0;
  /// Whether a rank asked, as all ranks know since the last step.
  virtual bool stops() const = 0;
  virtual std::int64_t next_step() const = 0;
  virtual const Plan& plan() const = 0;  ///< the one that runs
  virtual Executor& executor() = 0;
  virtual const Replayer& replayer() const = 0;
};

}  // namespace agpcs
