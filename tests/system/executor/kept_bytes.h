// SPDX-License-Identifier: Apache-2.0
// Bytes that stay from a forward pass for the backward pass: as the operator table says, and as the
// executor has them.
#pragma once

#include "ir/graph/op_table.h"
#include "ir/strategy/stage_memory.h"
#include "tests/system/executor/stage_driver.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/version.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace agpcs::testing {

// What LibTorch counts all bytes in.
#if TORCH_VERSION_MAJOR >= 2
using Total = std::size_t;
#else
using Total = std::int64_t;
#endif

/// Adds up the bytes that this thread allocates and frees.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*memory*/, std::int64_t bytes, Total /*allocated*/,
                         Total /*reserved*/, c10::Device /*device*/) override {
    bytes_ += bytes;
    peak_ = std::max(peak_, bytes_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t bytes() const { return bytes_; }
  /// Returns the most bytes since the last call of `begin_peak`.
  std::int64_t peak() const { return peak_; }
  void begin_peak() { peak_ = bytes_; }

 private:
  std::int64_t bytes_ = 0, peak_ = 0;
};

/// Returns a plan of one device and one micro-batch.
inline Plan plan_of_one_pass(const Graph& graph, std::int64_t samples) {
  const std::string strategy = "micro-batches 1\nstage a/0=" + std::to_string(samples) + " : *\n";
  return plan_of(graph, one_device(), strategy, samples);
}

/// What the table says that operators keep, one after the other: a tensor counts for the first one.
class KeptByTable {
 public:
  KeptByTable(const Graph& graph, std::int64_t samples) : graph_(graph), samples_(samples) {}

  /// Returns the bytes that `op` keeps, and none before it.
  std::int64_t bytes(OpId op) {
    const Kept kept = kept_for_backward(graph_, op, samples_, Precision::kFp32);
    std::int64_t bytes = kept.extra_bytes;
    for (const TensorId id : kept.tensors) {
      if (!counted_.insert(id).second) continue;
      const Tensor& tensor = graph_.tensor(id);
      bytes += elements_at(tensor.shape, samples_) *
               static_cast<std::int64_t>(element_bytes(tensor.type, Precision::kFp32));
    }
    return bytes;
  }

 private:
  const Graph& graph_;
  std::int64_t samples_;
  std::set<TensorId> counted_;
};

inline std::int64_t kept_by_table(const Graph& graph, std::int64_t samples) {
  KeptByTable table(graph, samples);
  std::int64_t bytes = 0;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) bytes += table.bytes(id);
  return bytes;
}

/// Returns the bytes that stay allocated after a forward pass.
inline std::int64_t kept_by_executor(const Graph& graph, std::int64_t samples) {
  StageDriver driver(graph, plan_of_one_pass(graph, samples));
  AGPCS_CHECK(driver.executor().begin_step(0).ok(), "begin_step");
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  const Status passed = driver.executor().forward({0, 0});
  AGPCS_CHECK(passed.ok(), "{}", passed.message());
  return live->bytes();
}

/// The samples of a batch, and the elements of each in activations, for `graph_of_layers`.
inline constexpr std::int64_t kSamples = 256, kWidth = 64;

/// Returns a model of four layers with residuals, whose activations take turns.
inline Graph graph_of_layers(const std::vector<std::string>& activations) {
  std::string text = "input x [n,64]\ninput labels int64[n]\nfirst = MatMul(x, w) [n,64]\n";
  std::string parameters = "parameter w [64,64]\nparameter v [64,8]\n", in = "first";
  for (std::size_t layer = 0; layer < 4; ++layer) {
    const std::string n = std::to_string(layer);
    parameters += "parameter w" + n + " [64,64]\nparameter u" + n + " [64,64]\n";
    text += "h" + n + " = MatMul(" + in + ", w" + n + ") [n,64]\na" + n + " = " +
            activations[layer % activations.size()] + "(h" + n + ") [n,64]\nb" + n + " = MatMul(a" +
            n + ", u" + n + ") [n,64]\nr" + n + " = Add(b" + n + ", " + in + ") [n,64]\n";
    in = "r" + n;
  }
  return graph_of(parameters + text + "y = MatMul(" + in +
                  ", v) [n,8]\nl = SoftmaxCrossEntropyLoss(y, labels) []\noutputs y\nloss l\n");
}

/// Returns what the memory model says of a plan of one stage for `kSamples` samples.
inline StageMemory memory_of_layers(const Graph& graph, const Plan& plan) {
  std::vector<OpId> ops(graph.ops.size());
  std::iota(ops.begin(), ops.end(), 0);
  return StageMemoryModel(graph, plan.training).of(parts_of_stage(plan, graph, 0, ops), kSamples);
}

}  // namespace agpcs::testing
