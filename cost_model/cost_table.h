// SPDX-License-Identifier: Apache-2.0
// CostTable: seconds of every operator on every kind of device, forward and backward.
#pragma once

#include "cost_model/operator_curve.h"
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

/// Whether arithmetic bounds the operators of a class (convolutions and matrix products), or
/// memory.
bool bound_by_arithmetic(OpClass op_class);

/// Bytes that an optimizer's step (`optimizer_name`) reads and writes per parameter. Arithmetic is
/// in fp32; in half precision the gradient is read in 2 bytes and the parameter's 2-byte copy is
/// written too.
double update_bytes(std::string_view optimizer, std::string_view precision);

/// Where the seconds of a model's operators on a kind of device come from.
struct Coverage {
  int operators = 0;  ///< that take time; by where their seconds come from:
  int measured = 0;   ///< the profile, in which they are
  int fitted = 0;     ///< what was fitted to their class in the profile
  int datasheet = 0;  ///< the kind's peak and bandwidth
  double measured_fraction_of_seconds = 0;
};

/// The fraction that operators of a class reach of the roof that bounds them, on a kind whose
/// `efficiency` does not name the class: of the precision's peak FLOP/s for convolutions and matrix
/// products, of the memory bandwidth for all others. Defaults for planning before anything was
/// profiled, not measurements of the device at hand; cost_table.cc says where each comes from.
double default_efficiency(OpClass op_class, std::string_view precision = "fp32");

/// Seconds of operators on device kinds (design section 6). On a kind with a profile:
/// 1. an operator that was measured (`op_signature`) takes what was measured: exactly at measured
///    numbers of samples, between and beyond them on straight lines (`OperatorCurve`); from a
///    single number of samples on as 2. or 3. grow;
/// 2. another one what was fitted to its class, overhead + FLOPs x per_flop + bytes x per_byte:
///    FLOPs / (peak x efficiency) with efficiency = FLOPs / (peak x those seconds), which grows
///    with size, as overhead weighs less;
/// 3. one of a class of which too little was measured: the roofline, if the kind has a peak for the
///    precision, else what was fitted to all classes that are bound alike.
/// On a kind without one: the roofline (Williams, Waterman and Patterson, CACM 52(4), 2009),
/// max(FLOPs / peak, bytes / bandwidth), each roof lowered by the class's efficiency where it
/// bounds the class, plus the kind's launch overhead. Unless they were measured, a view (reshape,
/// ...) and a pass without work cost nothing.
///
/// A value that refers to `graph`, which must outlive it. Const calls may run concurrently.
class CostTable {
 public:
  /// Needs: a calibrated cluster, if it has profiles. Errors: a kind that a device has lacks a peak
  /// for the training precision (names kind, precision and what it has), names an operator class
  /// that there is not, or has a profile of another precision or of other models alone.
  /// Cost: a few evaluations of `op_cost`, and its signature, per operator.
  static Result<CostTable> make(const Graph& graph, const Cluster& cluster,
                                const Training& training);

  /// Seconds of `op` for `samples` samples on device kind `kind`. Cost: O(1); on a kind with a
  /// profile O(log of the numbers of samples that were measured).
  OpSeconds seconds(int kind, OpId op, std::int64_t samples) const;
  /// Never above `seconds` for 1 to `most` samples. Where seconds rise with the samples and start
  /// from an overhead the line meets them at `most`; 0 for an operator whose cost is no line in the
  /// samples.
  OpFloor floor(int kind, OpId op, std::int64_t most) const;
  /// What `samples` samples take at least, in however many passes of at most `most` samples each.
  /// Does not fall with `samples`. Equal to their `seconds` in one pass where the line above is
  /// met. Needs: samples <= most.
  OpSeconds least_seconds(int kind, OpId op, std::int64_t samples, std::int64_t most) const;
  /// Seconds of the optimizer's step over `elements` parameters in `tensors` tensors: as fitted to
  /// what was measured of it, or of another optimizer, scaled by the bytes that they move; else
  /// bound by memory over parameters, gradients and optimizer state, and one launch a tensor.
  double update_seconds(int kind, std::int64_t elements, std::int64_t tensors) const;
  /// Seconds before a step's first forward pass, for `elements` parameters: gradients are zeroed. 0
  /// where none were measured.
  double begin_seconds(int kind, std::int64_t elements) const;
  /// Samples per second of the whole graph, forward and backward, on one device of `kind` with
  /// `samples` samples: the speed that shares and target weights are proportional to.
  double speed(int kind, std::int64_t samples) const;
  /// Where the seconds for `samples` samples on device kind `kind` come from. Cost: O(operators).
  Coverage coverage(int kind, std::int64_t samples) const;

 private:
  struct Roofline {
    double launch_overhead = 0;
    std::array<double, kOpClassCount> flops = {};      // FLOP/s by class, lowered
    std::array<double, kOpClassCount> bandwidth = {};  // bytes/s by class, lowered
  };
  struct Kind {
    bool used = false;       // some device is of this kind
    bool profiled = false;   // classes and curves are set
    bool datasheet = false;  // `roofline` is set
    Roofline roofline;
    std::array<KindFit::Class, kOpClassCount> classes = {};
    std::vector<OperatorCurve> curves;
    std::vector<int> curve_of;                             // by OpId; -1: was not measured
    double update_per_tensor = 0, update_per_element = 0;  // seconds
    double begin_per_element = 0;                          // seconds
  };
  /// An operator's cost as fixed + per_sample x samples, which it is for nearly every operator;
  /// where it is not, `op_cost` is asked each time.
  struct Work {
    OpClass op_class = OpClass::kElementwise;
    bool affine = false;
    OpCost fixed, per_sample;
  };
  static Roofline roofline_of(const DeviceKind& kind, const std::string& precision);
  Result<Kind> kind_of(const DeviceKind& kind, const Cluster& cluster,
                       const std::vector<std::string>& signatures) const;
  Status add_profile(const DeviceKind& from, const Profile& profile,
                     const std::vector<std::string>& signatures, Kind& kind) const;
  void add_update(const DeviceKind& from, Kind& kind) const;
  OperatorCurve curve_of(const MeasuredOperator& measured, const Kind& kind, OpId op) const;
  Work work_of(OpId op) const;
  bool has_work(OpId op) const;
  bool rises(OpId op) const;
  OpCost cost_at(OpId op, std::int64_t samples) const;
  const Kind& used_kind(int kind) const;
  OpSeconds estimate(const Kind& kind, OpId op, std::int64_t samples) const;

  const Graph* graph_ = nullptr;
  std::string precision_;
  std::string optimizer_;    // `optimizer_name`
  std::vector<Kind> kinds_;  // by kind
  std::vector<Work> work_;   // by OpId
};

}  // namespace agpcs
