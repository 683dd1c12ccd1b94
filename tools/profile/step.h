// SPDX-License-Identifier: Apache-2.0
// StepBench: trains a model on this device alone, step after step. It times operators inside whole
// steps, so that caches, allocator and autograd are as in training.
#pragma once

#include "ir/cluster/profile.h"
#include "ir/graph/graph.h"
#include "runtime/torch/executor.h"
#include "tools/profile/alone.h"
#include "tools/profile/statistics.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

/// The times of a step by the clock. The parts add up to the step.
struct TimedSteps {
  /// By OpId; 0 if an operator has no such pass. The last one is what belongs to no operator.
  std::vector<Measured> forward, backward;
  Measured begin, update;
  double step = 0;      ///< seconds
  double stretch = 1;   ///< the clock's seconds / computing seconds
  double observer = 1;  ///< computing seconds of an observed step / of an unobserved one
  std::int64_t steps = 0;
};

class StepBench : private OperatorObserver {
 public:
  /// Makes a bench. `graph` must outlive it; `plan` is for one rank, or for a team, whose rank 0 is
  /// measured as if the others had zeros.
  static Result<std::unique_ptr<StepBench>> make(const Graph& graph, const Plan& plan, int threads,
                                                 const std::string& device);

  /// Trains one step and counts it. If `observed`, its operators are timed.
  Status step(bool observed);
  /// Trains one step as jobs do, and does not count it.
  Status run();
  /// Forgets all steps so far, which were a warm-up.
  void forget();
  double last_step() const { return last_step_; }  ///< seconds by the clock
  std::int64_t steps() const { return static_cast<std::int64_t>(plain_.size() + watched_.size()); }

  /// Returns the times. An operator's time is its median over the observed steps, scaled so that
  /// the operators add up to the median of whole passes, times the stretch. Needs: an observed
  /// step.
  TimedSteps times() const;

 private:
  StepBench(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {}
  void pass_done(Opcode pass, const std::vector<OperatorTime>& operators) override;
  Status train(TimedStep& timed, bool ahead);

  /// By OpId, and last what belongs to no operator; one value for each observed step.
  using Times = std::vector<std::vector<double>>;
  const Graph& graph_;
  const Plan plan_;
  std::unique_ptr<AloneTransport> alone_;  // of a team
  std::unique_ptr<TorchExecutor> executor_;
  std::vector<TimedStep> plain_, watched_;
  Times forward_, backward_;
  std::int64_t steps_ = 0;
  double last_step_ = 0;
  bool on_gpu_ = false;
};

}  // namespace agpcs
