// SPDX-License-Identifier: Apache-2.0
// CostTable: seconds of every operator on every kind of device, forward and backward.
#pragma once

#include "ir/cluster.h"
#include "ir/graph.h"
#include "ir/op_table.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// Roofline of one operator on one kind of device (design section 6):
/// max(FLOPs / (peak x efficiency of the class), bytes / bandwidth) + launch overhead.
struct OpSeconds {
  double forward = 0, backward = 0;
};

/// Fraction of peak FLOP/s (compute classes) by class when a kind does not say otherwise.
double default_efficiency(OpClass op_class);

class CostTable {
 public:
  /// Errors: a kind has no peak for the training precision (names kind, precision, what it has).
  static Result<CostTable> make(const Graph& graph, const Cluster& cluster,
                                const Training& training);

  /// Seconds of `op` for `samples` samples on device kind `kind`.
  OpSeconds seconds(int kind, OpId op, std::int64_t samples) const;
  /// Samples per second of the whole graph, forward and backward, on one device of `kind` with
  /// `samples` samples: the speed that shares and target weights are proportional to.
  double speed(int kind, std::int64_t samples) const;

 private:
  struct Roofline {
    double memory_bandwidth = 0, launch_overhead = 0;
    std::array<double, kOpClassCount> flops = {};  // peak x efficiency, by class
  };
  const Graph* graph_ = nullptr;
  std::string precision_;
  std::vector<Roofline> kinds_;
};

}  // namespace agpcs
