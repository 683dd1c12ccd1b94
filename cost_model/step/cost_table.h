// SPDX-License-Identifier: Apache-2.0
// CostTable: seconds of every operator on every kind of device, forward and backward.
#pragma once

#include "cost_model/kernel/device.h"
#include "cost_model/step/operator_curve.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/graph/op_table.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns true when arithmetic bounds the operators of a class (convolutions and matrix products),
/// false when memory does.
bool bound_by_arithmetic(OpClass op_class);

/// Returns the bytes that a step of an optimizer (`optimizer_name`) reads and writes per parameter.
/// Arithmetic is in fp32; in half precision, the step reads the gradient in 2 bytes and also writes
/// the parameter's 2-byte copy.
double update_bytes(std::string_view optimizer, Precision precision);
/// Returns the bytes that clipping by the norm reads and writes per parameter: the gradient is read
/// for its square, and scaled.
double clipping_bytes(Precision precision);

/// The sources of the seconds of a model's operators on a kind of device: how many use each.
struct Coverage {
  int operators = 0;  ///< operators that take time; the following are parts of them:
  int measured = 0;   ///< taken from the profile, which has the operator
  int fitted = 0;     ///< from the fit of the operator's class in the profile
  int datasheet = 0;  ///< from the kind's peak and bandwidth, or by the kernel model
  double measured_fraction_of_seconds = 0;
};

/// Returns the default efficiency of a class, for a kind whose `efficiency` does not name the
/// class: the fraction of their roof that its operators reach. The roof is the precision's peak
/// FLOP/s for convolutions and matrix products, and the memory bandwidth for all others. These are
/// defaults for planning before anything was profiled, not measurements of the device at hand;
/// cost_table.cc gives their sources.
double default_efficiency(OpClass op_class, Precision precision = Precision::kFp32);

/// Seconds of operators on device kinds.
///
/// On a kind with a profile:
/// 1. An operator that was measured (the profile has its `op_signature`) takes what was measured:
///    exactly at measured numbers of samples, on straight lines between and beyond them
///    (`OperatorCurve`). If it was measured at a single number of samples, its seconds grow from
///    there as those of 2 or 3 do.
/// 2. Another operator takes what was fitted to its class, overhead + FLOPs x per_flop + bytes x
///    per_byte. This is FLOPs / (peak x efficiency), with efficiency = FLOPs / (peak x those
///    seconds). The efficiency grows with size because the overhead then weighs less.
/// 3. An operator of a class with too few measurements takes the roofline if the kind has a peak
/// for
///    the precision. Otherwise it takes what was fitted to all classes with the same bound.
///
/// On a kind with a quick profile (`agpcs-profile --quick`), an operator that was not measured
/// takes what was fitted to its group (cost_model/kernel/terms.h), at some numbers of samples, with
/// straight lines between them; 2 and 3 are for operators of other groups. If the kind has measured
/// operators as well, 2 comes first.
///
/// On a kind without a profile whose processors are known, in fp32: the kernel model
/// (docs/design/kernel_model.md) for matrix products and convolutions, at some numbers of samples,
/// with straight lines between them. Other operators take the roofline below with the model's
/// bandwidths and power. An efficiency that the kind names for a class comes first.
///
/// On a kind without a profile: the roofline (Williams, Waterman and Patterson, CACM 52(4), 2009),
/// max(FLOPs / peak, bytes / bandwidth), plus the kind's launch overhead. The roof that bounds a
/// class is lowered by the class's efficiency. Unless they were measured, a view (reshape, ...) and
/// a pass without work cost nothing.
///
/// A value that refers to `graph`, which must outlive it. Const calls may run concurrently.
class CostTable {
 public:
  /// Needs: a calibrated cluster, if it has profiles. Errors: a kind that a device has lacks a peak
  /// for the training precision (the message names kind, precision and what the kind has), names an
  /// unknown operator class, or has a profile of another precision or of other models alone. Cost:
  /// for each operator, a few evaluations of `op_cost` and its signature. `of_parts`: operators are
  /// parts of others (MemberCosts), so a profile may have none of them, and no first one loads
  /// samples.
  static Result<CostTable> make(const Graph& graph, const Cluster& cluster,
                                const Training& training, bool of_parts = false);

  /// Returns the seconds of `op` for `samples` samples on device kind `kind`. Cost: O(1); on a kind
  /// with a profile, O(log of the numbers of samples that were measured).
  OpSeconds seconds(int kind, OpId op, std::int64_t samples) const;
  /// Returns whether the kind's profile has measured the operator.
  bool is_measured(int kind, OpId op) const;
  /// Returns the seconds of `op` as if the profile had not measured it: by sources 2 and 3. Cost:
  /// O(1).
  OpSeconds unmeasured_seconds(int kind, OpId op, std::int64_t samples) const {
    return estimate(used_kind(kind), op, samples);
  }
  /// Returns a lower bound of `seconds` for 1 to `most` samples. Where seconds are an overhead plus
  /// a rising line in the samples, the bound meets them at `most`. It is 0 for an operator whose
  /// cost is not a line in the samples.
  OpFloor floor(int kind, OpId op, std::int64_t most) const;
  /// Returns what holds of `seconds` for 1 to `most` samples; nothing of an operator whose cost is
  /// not a line in the samples.
  OpRange range(int kind, OpId op, std::int64_t most) const;
  /// Returns a lower bound of what `samples` samples take in any number of passes of at most `most`
  /// samples each. It does not fall with `samples`, and equals their `seconds` in one pass where
  /// the bound above is met. Needs: samples <= most.
  OpSeconds least_seconds(int kind, OpId op, std::int64_t samples, std::int64_t most) const;
  /// Returns the seconds of the optimizer's step over `elements` parameters in `tensors` tensors:
  /// as fitted to its measurements, or to those of another optimizer, scaled by the bytes that they
  /// move. Without measurements, memory bandwidth bounds it, over parameters, gradients and
  /// optimizer state, plus one launch for each tensor.
  /// With `in_host`, the optimizer's state comes from the memory of the host and goes back there
  /// (`offloaded_seconds`); needs: the kind has a link to it.
  double update_seconds(int kind, std::int64_t elements, std::int64_t tensors,
                        bool in_host = false) const;
  /// Returns the seconds before a step's first forward pass, when the gradients of `elements`
  /// parameters are zeroed; 0 if they were not measured.
  double begin_seconds(int kind, std::int64_t elements) const;
  /// Returns the samples per second of the whole graph, forward and backward, on one device of
  /// `kind` with `samples` samples. Shares and target weights are proportional to this speed.
  double speed(int kind, std::int64_t samples) const;
  /// Returns where the seconds for `samples` samples on device kind `kind` come from. Cost:
  /// O(operators).
  Coverage coverage(int kind, std::int64_t samples) const;

 private:
  struct Roofline {
    double launch_overhead = 0;
    std::array<double, kOpClassCount> flops = {};      // FLOP/s by class, lowered by its efficiency
    std::array<double, kOpClassCount> bandwidth = {};  // bytes/s by class, lowered likewise
  };
  struct Kind {
    bool used = false;       // at least one device is of this kind
    bool profiled = false;   // classes and curves are set
    bool datasheet = false;  // `roofline` is set
    Roofline roofline;
    std::array<KindFit::Class, kOpClassCount> classes = {};
    std::vector<OperatorCurve> curves;
    std::size_t measured_curves = 0;  // the first curves; the others are models
    std::vector<int> curve_of;  // by OpId; -1: the operator was neither measured nor modelled;
                                // empty: no operator was
    double update_per_tensor = 0, update_per_element = 0;  // seconds
    double begin_per_element = 0;                          // seconds
    HostLink host_link;
  };
  /// An operator's cost as fixed + per_sample x samples, which holds for nearly every operator. For
  /// an operator for which it does not, `op_cost` is called each time.
  struct Work {
    OpClass op_class = OpClass::kElementwise;
    bool affine = false;
    OpCost fixed, per_sample;
  };
  static Roofline roofline_of(const DeviceKind& kind, Precision precision);
  Result<Kind> kind_of(const DeviceKind& kind, const Cluster& cluster, std::int64_t batch,
                       const std::vector<std::string>& signatures) const;
  Status add_profile(const DeviceKind& from, const Profile& profile,
                     const std::vector<std::string>& signatures, Kind& kind) const;
  /// On a kind with a quick profile: sets the curves of operators that were not measured and whose
  /// class was not fitted to measured operators, for up to `batch` samples.
  void add_corrections(const DeviceKind& from, std::int64_t batch,
                       const std::vector<std::string>& signatures, bool measured_any,
                       Kind& kind) const;
  /// Refuses operators whose times only a profile knows, where the kind's profile lacks them.
  Status check_measured(const DeviceKind& from, const Kind& kind) const;
  void add_update(const DeviceKind& from, Kind& kind) const;
  /// On a kind whose processors are known: sets the curves of operators whose kernels are modelled,
  /// for up to `batch` samples, and the rates of the others.
  void add_kernels(const DeviceKind& from, std::int64_t batch, Kind& kind) const;
  static void set_rates(const DeviceKind& from, const KernelDevice& device, Roofline& roofline);
  OperatorCurve modelled_curve(const DeviceKind& from, const KernelDevice& device, OpId op,
                               std::int64_t batch) const;
  /// Returns nullptr for an operator that has no curve.
  static const OperatorCurve* curve(const Kind& kind, OpId op);
  OperatorCurve curve_of(const MeasuredOperator& measured, const Kind& kind, OpId op) const;
  Work work_of(OpId op) const;
  bool has_work(OpId op) const;
  bool rises(OpId op) const;
  OpCost cost_at(OpId op, std::int64_t samples) const;
  const Kind& used_kind(int kind) const;
  OpSeconds estimate(const Kind& kind, OpId op, std::int64_t samples) const;

  const Graph* graph_ = nullptr;
  Precision precision_ = Precision::kFp32;
  std::string optimizer_;         // `optimizer_name`
  bool clips_ = false;            // Optimizer::max_norm
  std::int64_t state_bytes_ = 0;  // of an element
  bool of_parts_ = false;         // `make`
  std::vector<Kind> kinds_;       // by kind
  std::vector<Work> work_;        // by OpId
};

}  // namespace agpcs
