// SPDX-License-Identifier: Apache-2.0
// StageFeed: the samples that a rank computes with, and what they feed into its stage.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/data/labels.h"
#include "runtime/torch/data/read_ahead.h"
#include "runtime/torch/device/graph.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

struct TorchOptions;

class StageFeed {
 public:
  using Values = std::unordered_map<TensorId, at::Tensor>;
  /// The rows of a micro-batch that the rank takes.
  struct Share {
    std::int64_t samples = 0, offset = 0;
  };

  /// Finds `rank`'s shares. `graph`, `plan` and `options` must outlive this object.
  void find_shares(const Graph& graph, const Plan& plan, int stage, int rank,
                   const TorchOptions& options);
  /// Finds what to feed into the stage of the operators `ops`, which reads `tensors`. Error: an
  /// input does not have the batch as its first axis.
  Status find_inputs(const std::vector<OpId>& ops, const std::vector<TensorId>& tensors,
                     at::Device device);

  const Share& larger() const { return larger_; }
  const Share& smaller() const { return smaller_; }
  const Share& share_of(int micro_batch) const {
    return plan_->is_smaller(micro_batch) ? smaller_ : larger_;
  }
  /// Returns how many samples come, over all steps, before batch `batch` of a step.
  std::int64_t samples_before(std::int64_t step, int batch) const;
  /// Returns the number, over all steps, of the first sample of a micro-batch of batch `batch` of a
  /// step.
  std::int64_t first_sample(int micro_batch, std::int64_t step, int batch) const;
  /// Returns the part of the step's mean loss that a sum over `micro_batch`'s mean losses has.
  double weight_of(int micro_batch) const;
  const LabelCounter& labels() const { return labels_; }

  /// Adds the inputs of a micro-batch to `values`. If they are held, those are taken as they are.
  Status load(int micro_batch, std::int64_t step, int batch, Values& values);
  /// Counts the labels of step `step`'s samples that count, for losses that are means over them.
  Status count_labels(std::int64_t step);

  /// From now on, inputs are held in memory that stays where it is, until `stop_holding`.
  void hold();
  void stop_holding() { holding_ = false; }
  /// Loads the samples of a batch of step `step` into the held inputs.
  Status load_held(std::int64_t step, int batch);

 private:
  // The passes of a job, in their order; with a fixed batch, those of step 0 again and again.
  std::int64_t pass_of(int micro_batch, std::int64_t step, int batch) const;
  int micro_batch_of(std::int64_t pass) const;
  ReadAhead::Inputs allocate(std::int64_t pass) const;
  Status fill(std::int64_t pass, const ReadAhead::Inputs& inputs) const;
  Result<ReadAhead::Inputs> read(std::int64_t pass);

  const Graph* graph_ = nullptr;
  const Plan* plan_ = nullptr;
  const TorchOptions* options_ = nullptr;
  at::Device device_ = at::kCPU;
  Share larger_, smaller_;  // of micro-batches of either size
  std::vector<TensorId> inputs_;
  LabelCounter labels_;
  std::int64_t counted_step_ = -1;  // the step for which `labels_` has counted
  HeldInputs held_;
  bool holding_ = false;
  int held_batch_ = -1;                                       // whose samples are held
  std::unordered_map<std::int64_t, ReadAhead::Inputs> kept_;  // of a fixed batch, on a device
  std::unique_ptr<ReadAhead> ahead_;  // nullptr until a device's first pass; the last member
};

}  // namespace agpcs
