// SPDX-License-Identifier: Apache-2.0
// Trainer: a training job on one rank: replays the plan, watches for drift, and moves to a better
// plan without losing a step.
#pragma once

#include <agpcs/drift.h>
#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/replanner.h>
#include <agpcs/replayer.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace agpcs {

struct SwitchOptions {
  double horizon_seconds = 3600;  ///< within which a switch must pay for itself
  int most_switches = 2;          ///< in any `window_seconds`, so that nothing flaps
  double window_seconds = 600;
};

struct TrainerOptions {
  ReplayOptions replay;
  DriftOptions drift;
  SwitchOptions switching;
  std::int64_t first_step = 0;  ///< of a job that goes on from a checkpoint
};

/// What happened between two steps, for the log; told on every rank.
struct TrainerEvent {
  enum class Kind : std::uint8_t {
    kDrift,     ///< `changes` were established
    kProposed,  ///< a better plan is there
    kKept,      ///< the running plan stays: `why`
    kSwitched,  ///< `plan` runs from step `step` on
  };
  Kind kind = Kind::kDrift;
  std::int64_t step = 0;
  std::vector<DriftChange> changes;
  std::vector<LinkMeasurement> before, now;  ///< kDrift: of the links
  const Plan* plan = nullptr;                ///< kProposed, kSwitched
  double running_step_seconds = 0, step_seconds = 0;
  double seconds = 0;            ///< kSwitched: that the move took
  std::int64_t bytes_moved = 0;  ///< kSwitched: over the network
  std::string why;
};

/// What a trainer is made of; all of it outlives the trainer.
struct TrainerParts {
  /// Connects this rank with all others, for the `generation`-th plan (from 0).
  std::function<Result<std::unique_ptr<Transport>>(int generation)> connect;
  std::function<Result<std::unique_ptr<Executor>>()> make_executor;
  /// Gives the executor its state before the first step, by the transport where it must; may be
  /// empty.
  std::function<Status(Executor&, Transport&)> restore;
  Replanner* replanner = nullptr;  ///< of rank 0; nullptr: drift is told, the plan stays
  std::function<void(const TrainerEvent&)> on_event;
};

class Trainer {
 public:
  /// Connects and prepares. All ranks call it.
  static Result<std::unique_ptr<Trainer>> create(const Plan& plan, int rank, TrainerParts parts,
                                                 const TrainerOptions& options = {});
  virtual ~Trainer() = default;
  /// One step, and before it whatever is due between two steps.
  virtual Result<StepReport> run_step() = 0;
  /// Asks all ranks to stop; from a signal handler too. They all see it after the same step.
  virtual void ask_to_stop() = 0;
  /// True from the step after which every rank stops.
  virtual bool stops() const = 0;
  virtual std::int64_t next_step() const = 0;
  virtual const Plan& plan() const = 0;  ///< the one that runs
  virtual Executor& executor() = 0;
  virtual Transport& transport() = 0;
  virtual const Replayer& replayer() const = 0;
};

}  // namespace agpcs
