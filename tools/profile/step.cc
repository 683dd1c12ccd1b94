// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/step.h"

#include "tools/profile/network/pace.h"

#include <chrono>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

class Nobody : public GradientListener {
  void bucket_ready(int) override {}
};

// Returns the median computing seconds of one part over all steps.
template <typename Part>
Measured over(const std::vector<TimedStep>& steps, Part part) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const TimedStep& step : steps) values.push_back(part(step));
  return summarize(std::move(values));
}

// Returns the median of each operator, scaled so that they add up to `whole`.
std::vector<Measured> divided(const std::vector<std::vector<double>>& times, double whole) {
  std::vector<Measured> parts;
  double sum = 0;
  for (const auto& values : times) {
    parts.push_back(values.empty() ? Measured() : summarize(values));
    sum += parts.back().seconds;
  }
  for (Measured& part : parts) part = scaled(part, sum > 0 ? whole / sum : 1);
  return parts;
}

}  // namespace

Result<std::unique_ptr<StepBench>> StepBench::make(const Graph& graph, const Plan& plan,
                                                   int threads, const std::string& device) {
  std::unique_ptr<StepBench> bench(new StepBench(graph, plan));
  TorchOptions options;
  options.threads = threads;
  options.device = device;
  options.fixed_batch = true;  // making samples, and bringing them to a GPU, is not a model's time
  AGPCS_TRY(const Accelerator accelerator, accelerator_of(device));
  bench->on_gpu_ = !accelerator.name.empty();
  bench->executor_ = make_torch_executor(graph, std::move(options));
  AGPCS_RETURN_IF_ERROR(bench->executor_->prepare(bench->plan_, 0));
  if (plan.stages.front().has_teams()) {
    bench->alone_ = std::make_unique<AloneTransport>(plan.rank_count());
    AGPCS_RETURN_IF_ERROR(bench->executor_->exchange_with({bench->alone_.get()}));
  }
  bench->forget();
  return bench;
}

void StepBench::forget() {
  plain_.clear();
  watched_.clear();
  forward_.assign(graph_.ops.size() + 1, {});
  backward_.assign(graph_.ops.size() + 1, {});
}

void StepBench::pass_done(Opcode pass, const std::vector<OperatorTime>& operators) {
  Times& times = pass == Opcode::kForward ? forward_ : backward_;
  std::vector<double> seconds(times.size(), -1);
  for (const OperatorTime& time : operators) {
    double& sum = time.op == kNone ? seconds.back() : seconds[static_cast<std::size_t>(time.op)];
    sum = (sum < 0 ? 0 : sum) + time.seconds;
  }
  for (std::size_t op = 0; op < seconds.size(); ++op) {
    if (seconds[op] >= 0) times[op].push_back(seconds[op]);
  }
}

Status StepBench::train(TimedStep& timed, bool ahead) {
  using Clock = std::chrono::steady_clock;
  Nobody nobody;
  const auto start = Clock::now();
  double before = executor_->busy_seconds(ahead);
  const auto lap = [&](bool last = false) {
    const double now = executor_->busy_seconds(ahead && !last);
    return now - std::exchange(before, now);
  };
  AGPCS_RETURN_IF_ERROR(executor_->begin_step(steps_++));
  timed.begin = lap();
  AGPCS_RETURN_IF_ERROR(executor_->forward({0, 0}));
  timed.forward = lap();
  AGPCS_RETURN_IF_ERROR(executor_->backward({0, 0}, true, nobody));
  timed.backward = lap();
  AGPCS_RETURN_IF_ERROR(executor_->update());
  timed.update = lap(true);
  timed.wall = std::chrono::duration<double>(Clock::now() - start).count();
  return {};
}

Status StepBench::step(bool observed) {
  AGPCS_RETURN_IF_ERROR(executor_->observe(observed ? this : nullptr));
  TimedStep timed;
  AGPCS_RETURN_IF_ERROR(train(timed, true));
  last_step_ = timed.wall;
  if (on_gpu_) timed.wall = timed.busy();  // it waits for launches, as no recorded step does
  (observed ? watched_ : plain_).push_back(timed);
  return {};
}

Status StepBench::run() {
  AGPCS_RETURN_IF_ERROR(executor_->observe(nullptr));
  TimedStep timed;
  return train(timed, false);
}

TimedSteps StepBench::times() const {
  const std::vector<TimedStep>& whole = plain_.empty() ? watched_ : plain_;
  std::vector<TimedStep> all = plain_;
  all.insert(all.end(), watched_.begin(), watched_.end());
  TimedSteps times;
  times.steps = steps();
  times.stretch = agpcs::stretch(all);
  const auto part = [&](auto member) {
    return scaled(over(whole, [&](const TimedStep& s) { return s.*member; }), times.stretch);
  };
  times.begin = part(&TimedStep::begin);
  times.update = part(&TimedStep::update);
  const double forward = part(&TimedStep::forward).seconds;
  const double backward = part(&TimedStep::backward).seconds;
  times.forward = divided(forward_, forward);
  times.backward = divided(backward_, backward);
  times.step = times.begin.seconds + forward + backward + times.update.seconds;
  const auto busy = [](const TimedStep& s) { return s.busy(); };
  times.observer = over(watched_, busy).seconds / over(whole, busy).seconds;
  return times;
}

}  // namespace agpcs
