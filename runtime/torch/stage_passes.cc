// SPDX-License-Identifier: Apache-2.0
// The stage executor's steps: passes, evaluation, update.
#include "runtime/torch/stage_executor.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

namespace agpcs {

// The plan's optimizer with the learning rate of a step.
Optimizer StageExecutor::optimizer_at(std::int64_t step) const {
  Optimizer optimizer = plan_.training.optimizer;
  optimizer.learning_rate *= options_.schedule.factor(step);
  return optimizer;
}

// A recorded pass reads it on the GPU, so that each replay draws anew.
void StageExecutor::tell_samples_before(std::int64_t step, int batch) {
  if (samples_before_.defined()) samples_before_.fill_(feed_.samples_before(step, batch));
}

Status StageExecutor::begin_step(std::int64_t step) {
  return guarded("beginning a step", [&]() -> Status {
    step_ = step;
    batch_ = 0;
    evaluates_ = false;
    if (!recording_) {
      parameters_.load_step(optimizer_at(step), step);
      tell_samples_before(step, 0);
    }
    loss_->clear();
    parameters_.clear_gradients();
    cuts_.begin_step();
    for (SegmentPasses& passes : passes_) passes = {};
    if (team_) team_->begin_step(passes_.size());
    for (PutOffProducts& products : put_off_) products = {};
    return {};
  });
}

Status StageExecutor::next_batch() {
  return guarded("beginning a batch", [&]() -> Status {
    ++batch_;
    if (!recording_) tell_samples_before(step_, batch_);
    cuts_.begin_step();
    return {};
  });
}

Result<bool> StageExecutor::begin_evaluation(std::int64_t batch) {
  if (!evaluation_) return Executor::begin_evaluation(batch);
  return guarded("beginning an evaluation", [&]() -> Result<bool> {
    evaluates_ = true;
    cuts_.begin_step();
    return evaluation_->begin(batch);
  });
}

Status StageExecutor::evaluate(int micro_batch) {
  const at::NoGradGuard no_gradients;
  const StageFeed::Share& share = feed_.share_of(micro_batch);
  const StageEvaluation::Rows rows =
      evaluation_->rows(plan_.first_sample(micro_batch) + share.offset, share.samples);
  if (rows.computed == 0) {
    uses_.pass_by();
    return {};
  }
  const auto alone = [&](std::int64_t samples, Values& values, StageCode::Run run) -> Status {
    run.uses = uses_.empty() ? nullptr : &uses_;
    AGPCS_TRY(const StageCode* own, evaluation_->code(samples));
    (own == nullptr ? code_of(micro_batch) : *own).run(values, run);
    return {};
  };
  const auto in_team = [&](std::int64_t samples, Values& values, const StageCode::Run& run) {
    return team_->evaluate(samples, evaluation_->kept(), values, run);
  };
  StageEvaluation::Computation by{inputs(), alone};
  if (team_) {
    by.run = in_team;
    by.counts = team_->member() == 0;
  }
  return evaluation_->pass(rows, micro_batch, parameters_.values(), by, cuts_);
}

StageCode::Run StageExecutor::run_of(int micro_batch) {
  StageCode::Run run;
  run.seed = options_.seed;
  run.first_sample = feed_.first_sample(micro_batch, step_, batch_);
  run.samples_before = feed_.samples_before(step_, batch_);
  if (samples_before_.defined()) {
    run.samples_before_here = samples_before_.data_ptr<std::int64_t>();
  }
  run.clock = clock_.get();
  run.labels = &feed_.labels();
  run.asked_device = &asked_device_;
  if (!put_off_.empty()) run.put_off = &put_off_[static_cast<std::size_t>(micro_batch)];
  run.uses = uses_.empty() ? nullptr : &uses_;
  return run;
}

StageExecutor::Values StageExecutor::first_gradients(int micro_batch) const {
  Values gradients = cuts_.received_gradients(micro_batch);
  if (has_loss_) {
    const at::ScalarType type = computed_type(graph_.tensor(graph_.loss).type);
    gradients[graph_.loss] =
        at::full({}, feed_.weight_of(micro_batch), at::TensorOptions().dtype(type).device(device_));
  }
  return gradients;
}

Status StageExecutor::forward(const StagePass& of) {
  const int micro_batch = of.micro_batch;
  return ended(guarded(fmt::format("forward of micro-batch {}", micro_batch), [&]() -> Status {
    if (evaluates_) return evaluate(micro_batch);
    const Timed timed(times_.get(), slot(Opcode::kForward, micro_batch));
    if (clock_) clock_->start();
    Values values = parameters_.values();
    if (!recording_) AGPCS_RETURN_IF_ERROR(feed_.count_labels(step_));
    AGPCS_RETURN_IF_ERROR(feed_.load(micro_batch, step_, batch_, values));
    cuts_.put_received(micro_batch, values);
    compute(micro_batch, values);
    // The loss of a team is its first member's.
    if (has_loss_ && (!team_ || team_->member() == 0)) {
      loss_->add(values.at(graph_.loss).detach().sum() * feed_.weight_of(micro_batch));
    }
    cuts_.keep_sent(micro_batch, values);
    values.clear();
    if (clock_) clock_->stop(Opcode::kForward);
    return {};
  }));
}

void StageExecutor::compute(int micro_batch, Values& values) {
  const auto pass = static_cast<std::size_t>(micro_batch);
  StageCode::Run run = run_of(micro_batch);
  run.new_state = [this](TensorId id, const at::Tensor& value) {
    parameters_.set_state(id, value);
  };
  if (team_) {
    team_->forward(pass, feed_.share_of(micro_batch).samples, values, run);
  } else {
    passes_[pass].forward(graph_, code_of(micro_batch), values, run, {copies_.get(), &moved_});
  }
}

Status StageExecutor::backward(const StagePass& of, bool last, GradientListener& listener) {
  const int micro_batch = of.micro_batch;
  return ended(guarded(fmt::format("backward of micro-batch {}", micro_batch), [&]() -> Status {
    const Timed timed(times_.get(), slot(Opcode::kBackward, micro_batch));
    if (clock_) clock_->start();
    const auto pass = static_cast<std::size_t>(micro_batch);
    parameters_.begin_backward(last && !team_, listener);
    if (team_) {
      team_->backward(pass, first_gradients(micro_batch));
    } else {
      passes_[pass].backward(first_gradients(micro_batch), parameters_.values(),
                             run_of(micro_batch));
    }
    parameters_.end_backward();
    if (team_ && last) {
      if (clock_) clock_->begin(kNone);
      end_team_step(listener);
    }
    cuts_.end_backward(micro_batch);
    if (clock_) clock_->stop(Opcode::kBackward);
    return {};
  }));
}

/// No gradient is complete before the members have exchanged those of copies.
void StageExecutor::end_team_step(GradientListener& listener) {
  team_->step_end(parameters_.values());
  parameters_.begin_backward(true, listener);
  parameters_.end_backward();
}

Status StageExecutor::backward_input(const StagePass& of) {
  const int micro_batch = of.micro_batch;
  return guarded(fmt::format("input pass of micro-batch {}", micro_batch), [&]() -> Status {
    const Timed timed(times_.get(), slot(Opcode::kBackwardInput, micro_batch));
    passes_[static_cast<std::size_t>(micro_batch)].backward(
        first_gradients(micro_batch), parameters_.values(), run_of(micro_batch));
    cuts_.end_backward(micro_batch);
    return {};
  });
}

Status StageExecutor::backward_weight(const StagePass& of, bool last, GradientListener& listener) {
  const int micro_batch = of.micro_batch;
  return guarded(fmt::format("weight pass of micro-batch {}", micro_batch), [&]() -> Status {
    const Timed timed(times_.get(), slot(Opcode::kBackwardWeight, micro_batch));
    PutOffProducts& products = put_off_[static_cast<std::size_t>(micro_batch)];
    parameters_.begin_weight_pass(products.parameters(), last, listener);
    products.finish();
    parameters_.end_backward();
    return {};
  });
}

Result<double> StageExecutor::squares(int bucket) {
  double squares = 0;
  AGPCS_RETURN_IF_ERROR(guarded("the norm of gradients", [&]() -> Status {
    AGPCS_TRY(squares, parameters_.squares(bucket));
    return {};
  }));
  return squares;
}

Status StageExecutor::scale(double factor) {
  return guarded("clipping gradients", [&]() -> Status {
    if (factor != 1) parameters_.scale(factor);
    return {};
  });
}

Status StageExecutor::update() {
  return guarded("the optimizer's step", [&]() -> Status {
    const Timed timed(times_.get(), slot(Opcode::kUpdate, 0));
    parameters_.update(optimizer_at(step_), step_);
    return {};
  });
}

}  // namespace agpcs
