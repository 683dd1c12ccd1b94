// SPDX-License-Identifier: Apache-2.0
// TeamStage: the stage of a rank that is a member of a team.
#pragma once

#include "runtime/torch/parameters/parameters.h"
#include "runtime/torch/stage.h"
#include "runtime/torch/team/code.h"
#include "runtime/torch/team/link.h"
#include "runtime/torch/team/pass.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace agpcs {

/// Parameters and states are in parts, or copies, as the body says. Everything else comes and
/// leaves as copies. All members call the same functions in the same order.
class TeamStage final : public HeldParts {
 public:
  using Values = TeamPass::Values;
  /// Makes the stage of operators `ops`. `graph` must outlive it. Errors: the body is not of these
  /// operators, does not verify, or has a running statistic in two forms; the seat names no member.
  static Result<std::unique_ptr<TeamStage>> make(const Graph& graph, const TeamSeat& seat,
                                                 const std::vector<OpId>& ops, at::Device device);
  /// Does so for `rank`, whose replica is a team. Errors: those of `team_body_of`; kUnavailable,
  /// the plan asks for what a team does not do yet.
  static Result<std::unique_ptr<TeamStage>> make(const Graph& graph, const Plan& plan, int rank,
                                                 const std::vector<OpId>& ops, at::Device device);
  /// See `Executor::exchange_with`.
  void exchange_with(const TeamExchanges& over) { seat_.over = over; }
  /// Returns why an exchange of a pass failed.
  const Status& failure() const { return context_.link.failure(); }
  /// Prepares passes of so many samples. Errors: those of `TeamCode::compile`.
  Status prepare(std::int64_t samples);

  /// Returns, ascending, the tensors that the stage reads and does not make, except constants.
  const std::vector<TensorId>& inputs() const { return inputs_; }
  std::size_t member() const { return context_.link.member(); }

  std::int64_t elements(TensorId id) const override;
  at::Tensor part_of(TensorId id, const at::Tensor& whole) const override;
  bool counts(TensorId id) const override;
  void describe(TensorId id, StateItem& item) const override;

  /// Begins a step of so many micro-batches.
  void begin_step(std::size_t micro_batches);
  /// Computes the forward pass of a micro-batch that has so many samples. `values` has what the
  /// stage reads; afterwards it has what leaves. Needs: `prepare(samples)`.
  void forward(std::size_t micro_batch, std::int64_t samples, Values& values,
               const StageCode::Run& run);
  /// Computes the forward pass of so many samples that nothing is learned from: prepares it, if
  /// that is not done yet, and keeps nothing for a backward pass. Of the tensors `keep`, `values`
  /// has afterwards those that the stage reads or makes, too, as copies. All members name the same
  /// ones.
  Status evaluate(std::int64_t samples, const std::vector<TensorId>& keep, Values& values,
                  const StageCode::Run& run);
  /// Computes the backward pass. `gradients` are those of what leaves, as far as there are some.
  /// Gradients of parameters and of received tensors are added to those that autograd knows.
  void backward(std::size_t micro_batch, const Values& gradients);
  /// Exchanges what the members have of parameters' gradients, after the step's last backward
  /// pass. `parameters` has the leaves that passes read.
  void step_end(const Values& parameters);

 private:
  TeamStage(const Graph& graph, const TeamSeat& seat, at::Device device);
  Status find_held();

  const TeamBody body_;
  TeamSeat seat_;
  TeamContext context_;
  std::vector<TensorId> inputs_;
  std::map<std::int64_t, TeamCode> codes_;         // by samples
  std::vector<std::unique_ptr<TeamPass>> passes_;  // by micro-batch
};

}  // namespace agpcs
