// SPDX-License-Identifier: Apache-2.0
// StageExecutor: what a rank's stage has, and how its passes use it.
#pragma once

#include "runtime/torch/cuts.h"
#include "runtime/torch/data/feed.h"
#include "runtime/torch/device/clock.h"
#include "runtime/torch/device/graph.h"
#include "runtime/torch/device/probe.h"
#include "runtime/torch/device/progress.h"
#include "runtime/torch/evaluation.h"
#include "runtime/torch/one_stage.h"
#include "runtime/torch/parameters/parameter_uses.h"
#include "runtime/torch/parameters/parameters.h"
#include "runtime/torch/put_off.h"
#include "runtime/torch/segments.h"
#include "runtime/torch/stage.h"
#include "runtime/torch/team/team_stage.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

class StageExecutor final : public OneStageExecutor {
 public:
  using Values = SegmentPasses::Values;

  StageExecutor(const Graph& graph, const TorchOptions& options, int stage)
      : graph_(graph), options_(options), stage_(stage) {}

  Status prepare(const Plan& plan, int rank) override;
  Status begin_step(std::int64_t step) override;
  Status next_batch() override;
  Result<bool> begin_evaluation(std::int64_t batch) override;
  Evaluation evaluation() const override {
    return evaluation_ ? evaluation_->sums() : Evaluation{};
  }
  Status forward(const StagePass& pass) override;
  Status backward(const StagePass& pass, bool last, GradientListener& listener) override;
  Status backward_input(const StagePass& pass) override;
  Status backward_weight(const StagePass& pass, bool last, GradientListener& listener) override;
  Status update() override;

  Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch) override {
    return guarded("a cut's activation",
                   [&] { return cuts_.activation(cut, transfer, micro_batch); });
  }
  Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch) override {
    return guarded("a cut's gradient", [&] { return cuts_.gradient(cut, transfer, micro_batch); });
  }
  void sent(const InstructionId& send) override { cuts_.sent(send); }
  CutBuffers& cuts() override { return cuts_; }
  Result<Buffer> bucket(int bucket) override {
    return flat_buffer(bucket, parameters_.gradient(bucket));
  }
  Result<Buffer> member_gradient(int bucket, std::size_t member) override {
    const at::Tensor gradient = parameters_.member_gradient(bucket, member);
    if (!gradient.defined()) return Buffer{};
    return Buffer{gradient.data_ptr(), gradient.nbytes(), DType::kFp32, gradient.is_cuda()};
  }
  Result<Buffer> values(int bucket) override {
    return flat_buffer(bucket, parameters_.value(bucket));
  }
  Status fill_bucket(int bucket) override {
    return guarded("filling a bucket", [&] { return parameters_.fill(bucket); });
  }
  Status keep_part(int bucket) override {
    return guarded("keeping a bucket's part", [&] { return parameters_.keep_part(bucket); });
  }
  Status gather_with(ParameterSource& source) override {
    uses_.connect(source);
    return {};
  }
  Status exchange_with(const TeamExchanges& over) override {
    if (!team_) return Executor::exchange_with(over);
    team_->exchange_with(over);
    return {};
  }
  Result<Buffer> gather(int bucket) override {
    return guarded("gathering a bucket", [&]() -> Result<Buffer> {
      AGPCS_TRY(const at::Tensor whole, parameters_.gather(bucket));
      return flat_buffer(bucket, whole);
    });
  }
  Result<double> squares(int bucket) override;
  Status scale(double factor) override;
  Result<Buffer> round_bucket(int bucket, DType type) override;
  Status widen_bucket(int bucket) override;
  double loss() const override;
  InstructionTime time_of(const InstructionId& id) override;
  double probe(double seconds) override { return probe_.run(seconds, device_); }

  std::string recording_obstacle() const override;
  Status begin_recording() override;
  Status end_recording() override;
  Status load_step(std::int64_t step) override;

  std::vector<StateItem> state() const override { return parameters_.state().items(); }
  Status read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                    float* out) const override {
    return guarded("reading state",
                   [&] { return parameters_.state().read(item, first, count, out); });
  }
  Status write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                     const float* values) override {
    return guarded("writing state",
                   [&] { return parameters_.state().write(item, first, count, values); });
  }

  Result<std::vector<float>> value(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::string notes() const override { return notes_; }
  Status observe(OperatorObserver* observer) override;
  double busy_seconds(bool ahead) override { return busy_clock().read(ahead); }

 private:
  BusyClock& busy_clock() {
    if (!busy_) busy_ = make_busy_clock(device_);
    return *busy_;
  }
  static Result<Buffer> flat_buffer(int bucket, const at::Tensor& flat, DType type = DType::kFp32);
  const StageCode& code_of(int micro_batch) const {
    const std::int64_t samples = feed_.share_of(micro_batch).samples;
    return samples == feed_.larger().samples ? code_ : smaller_code_;
  }

  // Turns foreign exceptions into errors.
  template <typename F>
  static auto guarded(std::string_view what, F&& f) -> decltype(f()) {
    try {
      return f();
    } catch (const std::exception& error) {
      return failure_of(what, error);
    }
  }

  // Returns how a pass ended: a failed exchange says more than the exception that it ended with.
  Status ended(Status pass) const {
    return pass.ok() || !team_ || team_->failure().ok() ? pass : team_->failure();
  }

  Status prepare_stage(const Plan& plan, int rank);
  Status prepare_code(const std::vector<OpId>& ops);
  Status prepare_team(const std::vector<OpId>& ops);
  Result<StageCode> compile(const std::vector<OpId>& ops, std::int64_t samples);
  Status prepare_host(const std::vector<OpId>& ops);
  Status choose_device();
  void note_precision();
  Status allocate_weights();
  Status check_inputs() const;
  /// Returns the tensors that the stage reads and does not make, except constants.
  const std::vector<TensorId>& inputs() const { return team_ ? team_->inputs() : code_.inputs(); }
  void compute(int micro_batch, Values& values);
  void end_team_step(GradientListener& listener);
  StageCode::Run run_of(int micro_batch);
  /// Returns the gradients that begin a backward pass: of the loss, and of what the stage has sent.
  Values first_gradients(int micro_batch) const;
  Status evaluate(int micro_batch);
  Optimizer optimizer_at(std::int64_t step) const;
  void tell_samples_before(std::int64_t step, int batch);
  std::size_t slot(Opcode computation, int micro_batch) const {
    const std::size_t kind = computation == Opcode::kUpdate ? 3
                             : goes_back(computation)       ? 1
                             : makes_gradients(computation) ? 2
                                                            : 0;
    return static_cast<std::size_t>(micro_batch) + kind * passes_.size();
  }

  const Graph& graph_;
  const TorchOptions& options_;
  const int stage_;
  Plan plan_;
  int rank_ = 0;
  StageFeed feed_;
  bool has_loss_ = false;
  at::Device device_ = at::kCPU;
  std::string notes_;
  // For the samples of this rank's share of larger and, if it differs, of smaller micro-batches.
  StageCode code_, smaller_code_;
  std::unique_ptr<TeamStage> team_;  // in place of the code; nullptr: this rank computes alone
  StageParameters parameters_;
  ParameterUses uses_;
  CutBuffers cuts_;
  std::unique_ptr<StageEvaluation> evaluation_;  // nullptr: there are no samples for it
  bool evaluates_ = false;                       // what runs is an evaluation, not a step
  std::vector<TensorId> weights_;
  std::unique_ptr<BusyClock> busy_;        // nullptr until it is asked
  std::unique_ptr<PassClock> clock_;       // nullptr: there is no observer
  std::unique_ptr<HostCopies> copies_;     // nullptr: activations stay on the device
  std::map<TensorId, std::size_t> moved_;  // those that do not, and with which segment they go
  std::vector<SegmentPasses> passes_;      // by micro-batch
  std::vector<PutOffProducts> put_off_;    // likewise; empty: backward passes are not parted
  std::int64_t step_ = 0;
  int batch_ = 0;              // of the step
  at::Tensor samples_before_;  // that number on a GPU that draws itself; else undefined
  std::unique_ptr<StepLoss> loss_;
  DeviceProbe probe_;
  std::unique_ptr<ComputeTimes> times_;  // nullptr: calls end with their computations
  OpId asked_device_ = kNone;            // an operator that asks the device for values
  bool recording_ = false;
  std::unique_ptr<GraphMemory> graph_memory_;
};

}  // namespace agpcs
