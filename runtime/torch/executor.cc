// SPDX-License-Identifier: Apache-2.0
// The executor of a rank: one of each of its stages, which have the samples in common.
#include "runtime/torch/executor.h"

#include "ir/plan/body/groups.h"
#include "ir/plan/rounds/rank_stages.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/one_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

namespace agpcs {
namespace {

class RankExecutor final : public TorchExecutor {
 public:
  RankExecutor(const Graph& graph, TorchOptions options)
      : graph_(graph), options_(std::move(options)) {
    if (!options_.data) options_.data = make_synthetic_data(graph_, options_.seed);
  }

  Status compute_stages(const std::vector<int>& /*stages*/) override { return {}; }
  Status prepare(const Plan& plan, int rank) override;
  Status begin_step(std::int64_t step) override {
    return each([&](Executor& stage) { return stage.begin_step(step); });
  }
  Status next_batch() override {
    return each([](Executor& stage) { return stage.next_batch(); });
  }

  Status forward(const StagePass& pass) override {
    for (const LocalCut& local : local_) {
      if (local.reader->index != pass.stage) continue;
      local.reader->executor->cuts().take(local.cut, pass.micro_batch,
                                          local.maker->executor->cuts());
    }
    return of(pass).forward(pass);
  }
  Status backward(const StagePass& pass, bool last, GradientListener& listener) override {
    AGPCS_RETURN_IF_ERROR(of(pass).backward(pass, last, listener));
    for (const LocalCut& local : local_) {
      if (local.reader->index != pass.stage) continue;
      local.maker->executor->cuts().take_gradients(local.cut, pass.micro_batch,
                                                   local.reader->executor->cuts());
    }
    return {};
  }
  Status backward_input(const StagePass& pass) override { return of(pass).backward_input(pass); }
  Status backward_weight(const StagePass& pass, bool last, GradientListener& listener) override {
    return of(pass).backward_weight(pass, last, listener);
  }
  Status update() override {
    return each([](Executor& stage) { return stage.update(); });
  }

  Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch) override {
    return of_cut(cut).activation(cut, transfer, micro_batch);
  }
  Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch) override {
    return of_cut(cut).gradient(cut, transfer, micro_batch);
  }
  void sent(const InstructionId& send) override { of_cut(send.object).sent(send); }
  Result<Buffer> bucket(int bucket) override { return of_bucket(bucket).bucket(bucket); }
  Result<Buffer> member_gradient(int bucket, std::size_t member) override {
    return of_bucket(bucket).member_gradient(bucket, member);
  }
  Result<Buffer> values(int bucket) override { return of_bucket(bucket).values(bucket); }
  Status fill_bucket(int bucket) override { return of_bucket(bucket).fill_bucket(bucket); }
  Status keep_part(int bucket) override { return of_bucket(bucket).keep_part(bucket); }
  Status gather_with(ParameterSource& source) override {
    return each([&](Executor& stage) { return stage.gather_with(source); });
  }
  Result<Buffer> gather(int bucket) override { return of_bucket(bucket).gather(bucket); }
  Status exchange_with(const TeamExchanges& over) override {
    return each([&](Executor& stage) { return stage.exchange_with(over); });
  }
  Result<Buffer> round_bucket(int bucket, DType type) override {
    return of_bucket(bucket).round_bucket(bucket, type);
  }
  Status widen_bucket(int bucket) override { return of_bucket(bucket).widen_bucket(bucket); }
  Result<double> squares(int bucket) override { return of_bucket(bucket).squares(bucket); }
  Status scale(double factor) override {
    return each([&](Executor& stage) { return stage.scale(factor); });
  }
  double loss() const override;

  Result<bool> begin_evaluation(std::int64_t batch) override;
  Evaluation evaluation() const override;
  InstructionTime time_of(const InstructionId& id) override;
  double probe(double seconds) override { return stages_.front().executor->probe(seconds); }

  std::string recording_obstacle() const override;
  Status begin_recording() override { return recorded().begin_recording(); }
  Status end_recording() override { return recorded().end_recording(); }
  Status load_step(std::int64_t step) override { return recorded().load_step(step); }

  std::vector<StateItem> state() const override;
  Status read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                    float* out) const override;
  Status write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                     const float* values) override;

  Result<std::vector<float>> value(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::string notes() const override { return stages_.front().executor->notes(); }
  Status observe(OperatorObserver* observer) override;
  double busy_seconds(bool ahead) override { return stages_.front().executor->busy_seconds(ahead); }

 private:
  struct Stage {
    int index = 0;
    std::unique_ptr<OneStageExecutor> executor;
  };
  /// Tensors that stay on the rank, from the stage that makes them to the one that reads them.
  struct LocalCut {
    int cut = 0;
    const Stage *maker = nullptr, *reader = nullptr;
  };
  void find_local_cuts();
  Status each(const std::function<Status(Executor&)>& act) {
    for (const Stage& stage : stages_) AGPCS_RETURN_IF_ERROR(act(*stage.executor));
    return {};
  }
  /// Returns the first of the stages for which `is_of(index)`; if there is none the first, which
  /// says what is wrong.
  template <typename IsOf>
  TorchExecutor& first_that(IsOf is_of) const {
    const auto found = std::find_if(stages_.begin(), stages_.end(),
                                    [&](const Stage& stage) { return is_of(stage.index); });
    return *(found == stages_.end() ? stages_.front() : *found).executor;
  }
  TorchExecutor& of(const StagePass& pass) const {
    return first_that([&](int stage) { return stage == pass.stage; });
  }
  TorchExecutor& of_cut(int cut) const {
    const Cut& c = plan_.cuts[static_cast<std::size_t>(cut)];
    return first_that([&](int stage) { return stage == c.from || stage == c.to; });
  }
  TorchExecutor& of_bucket(int bucket) const {
    if (bucket < 0 || bucket >= static_cast<int>(plan_.buckets.size())) {
      return *stages_.front().executor;  // which says what is wrong
    }
    const PlanBucket& b = plan_.buckets[static_cast<std::size_t>(bucket)];
    return first_that([&](int stage) { return b.is_of(stage); });
  }
  RecordingExecutor& recorded() const { return *stages_.front().executor; }

  const Graph& graph_;
  TorchOptions options_;
  Plan plan_;
  std::vector<Stage> stages_;    // ascending
  std::vector<LocalCut> local_;  // refer to `stages_`
  // By tensor and slot: those that have it. Several have what they read and nobody trains.
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> holders_;
};

Status RankExecutor::prepare(const Plan& plan, int rank) {
  if (plan.stage_of_rank(rank) < 0) {
    return invalid_input(fmt::format("the plan has no rank {}", rank));
  }
  plan_ = plan;
  for (const int index : stages_of_rank(plan, rank)) {
    stages_.push_back({index, make_stage_executor(graph_, options_, index)});
    AGPCS_RETURN_IF_ERROR(stages_.back().executor->prepare(plan, rank));
    for (const StateItem& item : stages_.back().executor->state()) {
      holders_[{item.tensor, item.slot}].push_back(stages_.size() - 1);
    }
  }
  find_local_cuts();
  return {};
}

void RankExecutor::find_local_cuts() {
  const auto stage = [&](int index) -> const Stage* {
    const auto found = std::find_if(stages_.begin(), stages_.end(),
                                    [&](const Stage& one) { return one.index == index; });
    return found == stages_.end() ? nullptr : &*found;
  };
  for (std::size_t c = 0; c < plan_.cuts.size(); ++c) {
    const Cut& cut = plan_.cuts[c];
    if (!is_local(plan_, cut) || stage(cut.from) == nullptr) continue;
    local_.push_back({static_cast<int>(c), stage(cut.from), stage(cut.to)});
  }
}

double RankExecutor::loss() const {
  double sum = 0;
  for (const Stage& stage : stages_) sum += stage.executor->loss();
  return sum;
}

Result<bool> RankExecutor::begin_evaluation(std::int64_t batch) {
  bool has = false;
  for (const Stage& stage : stages_) {
    AGPCS_TRY(has, stage.executor->begin_evaluation(batch));
  }
  return has;
}

Evaluation RankExecutor::evaluation() const {
  Evaluation sums;  // a stage without the loss has none
  for (const Stage& stage : stages_) {
    const Evaluation own = stage.executor->evaluation();
    sums = {sums.loss + own.loss, sums.correct + own.correct, sums.counted + own.counted,
            sums.samples + own.samples};
  }
  return sums;
}

InstructionTime RankExecutor::time_of(const InstructionId& id) {
  if (id.opcode != Opcode::kUpdate) return of({id.object, id.micro_batch}).time_of(id);
  InstructionTime time = stages_.front().executor->time_of(id);
  time.end = stages_.back().executor->time_of(id).end;
  return time;
}

std::string RankExecutor::recording_obstacle() const {
  return stages_.size() > 1 ? "its rank has several stages" : recorded().recording_obstacle();
}

std::vector<StateItem> RankExecutor::state() const {
  std::vector<StateItem> items;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    for (StateItem& item : stages_[s].executor->state()) {
      if (holders_.at({item.tensor, item.slot}).front() == s) items.push_back(std::move(item));
    }
  }
  return items;
}

Status RankExecutor::read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                                float* out) const {
  const auto holders = holders_.find({item.tensor, item.slot});
  const std::size_t holder = holders == holders_.end() ? 0 : holders->second.front();
  return stages_[holder].executor->read_state(item, first, count, out);
}

Status RankExecutor::write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                                 const float* values) {
  const auto found = holders_.find({item.tensor, item.slot});
  if (found == holders_.end()) {
    return stages_.front().executor->write_state(item, first, count, values);
  }
  for (const std::size_t holder : found->second) {
    AGPCS_RETURN_IF_ERROR(stages_[holder].executor->write_state(item, first, count, values));
  }
  return {};
}

Result<std::vector<float>> RankExecutor::value(std::string_view name) const {
  const auto has = [&](const Stage& stage) {
    const std::vector<std::string> names = stage.executor->names();
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto found = std::find_if(stages_.begin(), stages_.end(), has);
  return (found == stages_.end() ? stages_.front() : *found).executor->value(name);
}

std::vector<std::string> RankExecutor::names() const {
  std::vector<std::string> all;
  for (const Stage& stage : stages_) {
    for (std::string& name : stage.executor->names()) {
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(std::move(name));
    }
  }
  return all;
}

Status RankExecutor::observe(OperatorObserver* observer) {
  for (const Stage& stage : stages_) AGPCS_RETURN_IF_ERROR(stage.executor->observe(observer));
  return {};
}

}  // namespace

std::unique_ptr<TorchExecutor> make_torch_executor(const Graph& graph, TorchOptions options) {
  return std::make_unique<RankExecutor>(graph, std::move(options));
}

}  // namespace agpcs
