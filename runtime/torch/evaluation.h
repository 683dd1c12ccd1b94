// SPDX-License-Identifier: Apache-2.0
// StageEvaluation: what one rank computes of samples that nothing is learned from.
//
// The set's last batch may have fewer samples than the plan's. Stages before the loss then compute
// whole micro-batches, whose last rows are samples of the set's beginning; the stage of the loss
// leaves those rows out. So the loss is the exact mean over the set, whatever its size.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/torch/cuts.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/data/labels.h"
#include "runtime/torch/stage.h"

#include <agpcs/executor.h>
#include <agpcs/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace agpcs {

class StageEvaluation {
 public:
  /// Prepares the evaluation of the stage that computes `ops`, on batches of `batch` samples.
  /// `outgoing`: the tensors that it sends. `data` must outlive it. Errors, which name the
  /// operator: the loss over the set is not one number (operators draw random numbers in
  /// evaluation, too), or cannot be summed up from its parts (classes have weights; the stage of
  /// the loss sends tensors).
  static Result<std::unique_ptr<StageEvaluation>> make(const Graph& graph,
                                                       const std::vector<OpId>& ops,
                                                       const std::vector<TensorId>& outgoing,
                                                       DataSource& data, std::int64_t batch,
                                                       at::Device device);

  /// Begins batch `batch`; the first one clears the sums. Returns false if there is no such batch.
  Result<bool> begin(std::int64_t batch);
  /// The samples of a share of a micro-batch.
  struct Rows {
    std::int64_t first = 0;     ///< in the set
    std::int64_t computed = 0;  ///< 0: this stage has nothing to compute
  };
  /// Returns which samples to compute of `samples` samples from `offset` on in the batch.
  Rows rows(std::int64_t offset, std::int64_t samples) const;

  using Values = std::unordered_map<TensorId, at::Tensor>;
  /// How a rank computes samples of its stage.
  struct Computation {
    const std::vector<TensorId>& inputs;  ///< what the stage reads
    /// Computes so many samples. `values` has the inputs; afterwards it has what the stage sends,
    /// and the tensors `kept`.
    std::function<Status(std::int64_t samples, Values& values, const StageCode::Run& run)> run;
    bool counts = true;  ///< false: the sums are those of another member of the team
  };
  /// Computes `rows` of a micro-batch, and adds up what comes of it. `values` has the stage's
  /// weights.
  Status pass(const Rows& rows, int micro_batch, Values values, const Computation& by,
              CutBuffers& cuts);
  /// Returns the tensors that the sums are made of.
  const std::vector<TensorId>& kept() const { return kept_; }
  /// Returns the stage's code for so many samples; nullptr: that of training serves.
  Result<const StageCode*> code(std::int64_t samples);
  const Evaluation& sums() const { return sums_; }

 private:
  // Scores of classes, and the labels to compare the best one with; or numbers that are above 0 for
  // yes, and the truths.
  struct Scores {
    TensorId scores = kNone, labels = kNone;
    std::int64_t ignored = 0;
    bool binary = false;
  };
  StageEvaluation(const Graph& graph, const std::vector<OpId>& ops, DataSource& data,
                  std::int64_t batch, at::Device device)
      : graph_(graph), ops_(ops), data_(data), batch_(batch), device_(device) {}
  Status check(const std::vector<TensorId>& outgoing) const;
  /// Loads graph input `id` of `rows`, in host memory.
  Result<at::Tensor> load(TensorId id, const Rows& rows) const;
  /// Adds up what a pass has computed of `rows`.
  void add(const Values& values, const Rows& rows);
  void find_scores();
  void count_correct(const Values& values);

  const Graph& graph_;
  const std::vector<OpId> ops_;
  DataSource& data_;
  const std::int64_t batch_;
  const at::Device device_;
  bool has_loss_ = false;
  std::optional<Scores> scores_;
  std::vector<TensorId> kept_;
  LabelCounter labels_;
  bool counted_ = false;
  std::map<std::int64_t, StageCode> codes_;  // by samples
  std::int64_t first_ = 0;                   // of the batch
  Evaluation sums_;
};

}  // namespace agpcs
