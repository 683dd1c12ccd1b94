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
#include <string_view>
#include <vector>

namespace agpcs {

struct OpSeconds {
  double forward = 0, backward = 0;
};

/// The fraction that operators of a class reach of the roof that bounds them, on a kind whose
/// `efficiency` does not name the class: of the precision's peak FLOP/s for convolutions and matrix
/// products, of the memory bandwidth for all others. Defaults for planning before anything was
/// profiled, not measurements of the device at hand; cost_table.cc says where each comes from.
double default_efficiency(OpClass op_class, std::string_view precision = "fp32");

/// Roofline of operators on device kinds (design section 6; Williams, Waterman and Patterson, CACM
/// 52(4), 2009): max(FLOPs / peak, bytes / bandwidth), each roof lowered by the class's efficiency
/// where it bounds the class, plus the kind's launch overhead. A view (reshape, ...) and a pass
/// without work cost nothing.
///
/// A value that refers to `graph`, which must outlive it. Const calls may run concurrently.
class CostTable {
 public:
  /// Errors: a kind that a device has lacks a peak for the training precision (names kind,
  /// precision and what it has) or names an operator class that there is not.
  /// Cost: a few evaluations of `op_cost` per operator.
  static Result<CostTable> make(const Graph& graph, const Cluster& cluster,
                                const Training& training);

  /// Seconds of `op` for `samples` samples on device kind `kind`. Cost: O(1).
  OpSeconds seconds(int kind, OpId op, std::int64_t samples) const;
  /// Seconds of the optimizer's step over `elements` parameters in `tensors` tensors: bound by
  /// memory over parameters, gradients and optimizer state, and one launch a tensor.
  double update_seconds(int kind, std::int64_t elements, std::int64_t tensors) const;
  /// Seconds before a step's first forward pass, for `elements` parameters: gradients are zeroed. 0
  /// where none were measured.
  double begin_seconds(int kind, std::int64_t elements) const;
  /// Samples per second of the whole graph, forward and backward, on one device of `kind` with
  /// `samples` samples: the speed that shares and target weights are proportional to.
  double speed(int kind, std::int64_t samples) const;

 private:
  struct Roofline {
    double launch_overhead = 0;
    double begin_per_element = 0;                      // seconds
    std::array<double, kOpClassCount> flops = {};      // FLOP/s by class, lowered
    std::array<double, kOpClassCount> bandwidth = {};  // bytes/s by class, lowered
    bool used = false;                                 // some device is of this kind
  };
  /// An operator's cost as fixed + per_sample x samples, which it is for nearly every operator;
  /// where it is not, `op_cost` is asked each time.
  struct Work {
    OpClass op_class = OpClass::kElementwise;
    bool affine = false;
    OpCost fixed, per_sample;
  };
  static Result<Roofline> roofline_of(const DeviceKind& kind, const std::string& precision);
  Work work_of(OpId op) const;
  OpCost cost_at(OpId op, std::int64_t samples) const;

  const Graph* graph_ = nullptr;
  std::string precision_;
  double update_bytes_ = 0;      // bytes moved by the optimizer per parameter
  std::vector<Roofline> kinds_;  // by kind
  std::vector<Work> work_;       // by OpId
};

}  // namespace agpcs
