// SPDX-License-Identifier: Apache-2.0
// StepBench: trains a model on this device alone, step after step, and times operators inside the
// whole steps, so that caches, allocator and autograd are as in training.
#pragma once

#include "ir/graph.h"
#include "ir/profile.h"
#include "runtime/torch_executor.h"
#include "tools/profile_statistics.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

/// What a step takes by the clock: its parts add up to it.
struct TimedSteps {
  std::vector<Measured> forward, backward;  ///< by OpId; 0 where an operator has no such pass
  Measured begin, update;
  double step = 0;      ///< seconds
  double stretch = 1;   ///< the clock's seconds / computing seconds
  double observer = 1;  ///< computing seconds of a step that was observed / that was not
  std::int64_t steps = 0;
};

class StepBench : private OperatorObserver {
 public:
  /// `graph` outlives the bench; `plan` is for one rank.
  static Result<std::unique_ptr<StepBench>> make(const Graph& graph, const Plan& plan, int threads,
                                                 const std::string& device);

  /// Trains one step and counts it. With `observed` its operators are timed.
  Status step(bool observed);
  /// Forgets all steps so far: they warmed up.
  void forget();
  double last_step() const { return last_step_; }  ///< seconds by the clock
  std::int64_t steps() const { return static_cast<std::int64_t>(plain_.size() + watched_.size()); }

  /// Operators: the median over the observed steps, scaled such that they add up to the median of
  /// whole passes, times the stretch. Needs: an observed step.
  TimedSteps times() const;

 private:
  StepBench(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {}
  void pass_done(Opcode pass, const std::vector<OperatorTime>& operators) override;
  Status train(TimedStep& timed);

  using Times = std::vector<std::vector<double>>;  // by OpId, a value for each observed step
  const Graph& graph_;
  const Plan plan_;
  std::unique_ptr<TorchExecutor> executor_;
  std::vector<TimedStep> plain_, watched_;
  Times forward_, backward_;
  std::int64_t steps_ = 0;
  double last_step_ = 0;
};

}  // namespace agpcs
