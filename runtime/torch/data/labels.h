// SPDX-License-Identifier: Apache-2.0
// LabelCounter: how many labels of a step's batch count, for losses that are means over them.
//
// A rank's part of such a loss is the sum over its own labels, divided by the number of labels of
// the whole batch that count. Samples may have unequally many, so a rank needs to know about those
// of others. It counts them itself, before its first forward pass: every rank can read every sample
// (DataSource), and labels are small. So nothing travels, all ranks divide by the same integer, and
// a step computes what one process would.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/torch/ops/ops.h"
#include "runtime/torch/stage.h"

#include <agpcs/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace agpcs {

class LabelCounter {
 public:
  /// Finds the losses among `ops` that it can count for: means over labels that follow from inputs
  /// alone, without weights of classes. They are counted in parts of `samples[part]` samples.
  /// Other losses are means over their rank's labels.
  static Result<LabelCounter> make(const Graph& graph, const std::vector<OpId>& ops,
                                   std::vector<std::int64_t> samples, at::Device device);

  /// Tells whether it counts for the loss `op`.
  bool counts_for(OpId op) const;

  /// Writes the samples of a whole part of input `input`.
  using Fill = std::function<Status(TensorId input, std::int64_t part, void* out)>;
  /// Counts the labels of all parts. Error: a loss has none that count.
  Status count(const Fill& fill);

  /// Returns the labels that count, by sample of all parts, for the loss `op`: an fp32 scalar that
  /// `count` changes in place. Returns nullptr if `op` needs no such number: it is no loss that is
  /// counted for, or (on a CPU) all its labels count.
  const at::Tensor* labels_per_sample(OpId op) const;

 private:
  struct Counted {
    OpId op = kNone;
    TensorId labels = kNone;
    std::int64_t ignored = 0;
    std::int64_t counting = 0, all = 0;  // of all parts
    at::Tensor per_sample;
  };

  const Graph* graph_ = nullptr;
  std::vector<std::int64_t> sizes_;  // samples, by part
  at::Device device_ = at::kCPU;
  std::map<std::int64_t, StageCode> codes_;  // by samples: of all labels, from inputs
  std::vector<Counted> losses_;
};

}  // namespace agpcs
