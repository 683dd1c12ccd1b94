// SPDX-License-Identifier: Apache-2.0
// Drives an executor over a plan of one rank, as the replayer does.
#pragma once

#include "runtime/torch/executor.h"
#include "tests/support/plan_builders.h"

#include <agpcs/executor.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// Writes down which buckets were released, in order.
class BucketLog : public GradientListener {
 public:
  void bucket_ready(int bucket) override { buckets.push_back(bucket); }
  std::vector<int> buckets;
};

inline Cluster one_device() {
  return cluster_of("kind cpu memory=16e9 bandwidth=10e9 fp32=50e9\nhost a cpu 1\n");
}

/// Gives a constant of one number its value.
template <typename T>
void set_constant(Graph& graph, const char* name, T value) {
  Constant& constant = graph.tensor(graph.find_tensor(name)).constant;
  constant.bytes.resize(sizeof value);
  std::memcpy(constant.bytes.data(), &value, sizeof value);
}

/// Trains `graph` on one rank. `strategy` is a text of `strategy_of` over device a/0.
class StageDriver {
 public:
  StageDriver(const Graph& graph, Plan plan, TorchOptions options = {})
      : plan_(std::move(plan)), executor_(make_torch_executor(graph, std::move(options))) {
    const Status prepared = executor_->prepare(plan_, 0);
    AGPCS_CHECK(prepared.ok(), "{}", prepared.message());
  }

  /// One step; the loss of its batch before the update.
  double step(GradientListener* listener = nullptr) {
    BucketLog log;
    check(executor_->begin_step(steps_++));
    for (int m = 0; m < plan_.micro_batches; ++m) {
      check(executor_->forward({0, m}));
      check(executor_->backward({0, m}, m + 1 == plan_.micro_batches, listener ? *listener : log));
    }
    check(executor_->update());
    return executor_->loss();
  }

  std::vector<double> steps(int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) losses.push_back(step());
    return losses;
  }

  /// The next step is `step`.
  void go_on_at(std::int64_t step) { steps_ = step; }

  TorchExecutor& executor() { return *executor_; }
  std::vector<float> value(const std::string& name) { return executor_->value(name).value(); }

 private:
  static void check(const Status& status) { AGPCS_CHECK(status.ok(), "{}", status.message()); }

  Plan plan_;
  std::unique_ptr<TorchExecutor> executor_;
  std::int64_t steps_ = 0;
};

}  // namespace agpcs::testing
