// SPDX-License-Identifier: Apache-2.0
// GradientReducer: sums a step's gradients over ranks that may have them ready in different orders.
// docs/gradient_reducer.md says which way of coordination is for whom.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>
#include <agpcs/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// A gradient as it is declared once, before the first step.
struct Gradient {
  std::string name;
  DType type = DType::kFp32;
  std::int64_t elements = 0;
};

/// Gradients that are reduced together.
struct GradientGroup {
  std::string name;
  std::vector<int> gradients;  ///< indices, in the order in which they lie in the group's memory
  AllReduce algorithm = AllReduce::kRing;  ///< of `kPlanned`
  int flow = -1;                           ///< with `kFlow`: index into GradientSet::flows
};

/// What is reduced, and over whom; the same on all ranks.
struct GradientSet {
  std::vector<Gradient> gradients;
  /// With `kPlanned`: each gradient in exactly one group, groups in the order in which they are
  /// reduced. Else no gradient in two groups, and those in none go alone.
  std::vector<GradientGroup> groups;
  std::vector<PlanFlow> flows;
  std::vector<int> ranks;         ///< ascending; empty: all ranks of the transport
  std::vector<int> host_of_rank;  ///< of all ranks of the transport; empty: all on one host
};

/// The gradients, buckets, order and algorithms of the stage of `rank`: what the replayer of the
/// same plan reduces, in the order of the same program. Needs: a verified plan.
GradientSet gradients_of(const Plan& plan, int rank);

/// How ranks agree on what is reduced next.
enum class Coordination : std::uint8_t {
  /// In cycles: ranks send what has become ready to the first one, which answers with what is ready
  /// everywhere (Horovod as of 2018).
  kCoordinator,
  /// The same with a cache of answers: one pass over the ranks with a bit a cached answer, and the
  /// coordinator for the others only (Romero et al., NSDI 2022, section 3.1).
  kCached,
  /// Ranks send nothing but the sums: groups are reduced in the order given, each as soon as it and
  /// those before it are ready. Same inputs, same bytes.
  kPlanned,
};
std::string_view name_of(Coordination coordination);  ///< "coordinator", "cached", "planned"
std::optional<Coordination> coordination_named(std::string_view name);

/// The same on all ranks, but for `scale_in`.
struct ReducerOptions {
  Coordination coordination = Coordination::kPlanned;
  /// Longest wait for any one thing, other ranks' computations included; a step that lacks a
  /// gradient ends with an error on every rank by then (the rank that lacks it gives it half of
  /// that after `wait_all` began, so that all are told which one it was).
  std::chrono::milliseconds limit{300000};

  // Not of `kPlanned`. Defaults are those of Horovod 0.28.1 (horovod/common/operations.cc,
  // global_state.h; its documentation still says 64 MB, the default before version 0.21).
  std::int64_t fusion_bytes = std::int64_t{128} << 20;  ///< most in one all-reduce; 0: no fusion
  /// Gradients of so many bytes are not fused: reduced where they lie, they are not copied.
  /// (Horovod fuses all.)
  std::int64_t alone_bytes = std::int64_t{1} << 20;
  std::chrono::microseconds cycle{1000};  ///< from the beginning of a cycle to the next, at least
  int cache_capacity = 1024;              ///< answers; a group is one. `kCached`
  AllReduce algorithm = AllReduce::kRing;

  /// fp16 or bf16: what fp32 gradients travel and are summed in; others do as they are. With u =
  /// 2^-11 (fp16) or 2^-8 (bf16) and n ranks, an element of the sum is off by at most ((1 + u)^n -
  /// 1) sum |x_r| (one rounding on the way in, n - 1 of partial sums), in fp16 by n 2^-25 more;
  /// above 65,504 fp16 is infinite, above 3.4e38 bf16. x_r: after `scale_in`.
  std::optional<DType> wire_type;
  /// Gradients (of floating-point types) are multiplied by the one before they are summed (a rank's
  /// share of the batch, where shares are unequal), the sums by the other.
  double scale_in = 1, scale_out = 1;

  int group = 0;       ///< the reducer's group on the transport, which it opens
  int first_flow = 0;  ///< its flows there: this and following numbers
};

/// Of all steps so far, on this rank.
struct ReducerStats {
  std::int64_t steps = 0;
  std::int64_t cycles = 0;            ///< negotiations
  std::int64_t coordinated = 0;       ///< those of them in which the coordinator was asked
  std::int64_t control_messages = 0;  ///< sent beside payload; 0 with `kPlanned`
  std::int64_t control_bytes = 0;     ///< in them
  std::int64_t control_ns = 0;        ///< in cycles, waits for other ranks included
  std::int64_t all_reduces = 0;
  std::int64_t payload_bytes = 0;  ///< that were all-reduced, as they travelled
  std::int64_t copied_bytes = 0;   ///< moved to make reductions larger, or of another type
  std::int64_t hits = 0;           ///< answers taken from the cache
  std::int64_t evictions = 0, invalidations = 0;
  /// `kPlanned`: what the plan's order cost, the sum over groups of `delays()`.
  std::int64_t delay_ns = 0;
};

/// Threads: `submit` and `submit_absent` from any at any time between two returns of `wait_all`;
/// `wait_all` from one at a time. The transport is the reducer's alone while it lives: with
/// `kPlanned` only its collective stream is used.
///
///     auto reducer = GradientReducer::create(gradients_of(plan, rank), *transport, options);
///     each step, as gradients become ready:  (*reducer)->submit("conv1.weight", buffer);
///     before the optimizer's step:           (*reducer)->wait_all();
///
/// Errors name the gradient. The first one on any rank aborts the transport, is told to all ranks,
/// and is what every later call returns.
class GradientReducer {
 public:
  /// Opens the group and flows, and compares set and options over the ranks: where they differ, all
  /// ranks get an error that names the first difference and a rank. `transport` outlives the
  /// reducer. All ranks of the set call it.
  static Result<std::unique_ptr<GradientReducer>> create(const GradientSet& set,
                                                         Transport& transport,
                                                         const ReducerOptions& options = {});
  /// In the middle of a step it aborts the transport.
  virtual ~GradientReducer() = default;

  /// The index of a declared gradient; -1: there is none of that name.
  virtual int index_of(std::string_view name) const = 0;

  /// Gradient `gradient` of this step is in `buffer`, in the host's memory, which is left alone
  /// until `wait_all` returns, with the sum in it. Does not wait for other ranks.
  /// Errors: it came already in this step; with `kPlanned`, another type or size than declared.
  /// Else type and size may change from step to step, if they do on all ranks.
  virtual Status submit(int gradient, const Buffer& buffer) = 0;
  Status submit(std::string_view name, const Buffer& buffer);

  /// This rank has no such gradient in this step (a branch not taken): it counts as zeros, and the
  /// sum of the other ranks' comes into `sum`. Every gradient is submitted or absent in each step.
  virtual Status submit_absent(int gradient, const Buffer& sum) = 0;
  Status submit_absent(std::string_view name, const Buffer& sum);

  /// `kPlanned` without `wire_type`: where the gradient lies in its group's memory. A gradient that
  /// is made there, and submitted as this very buffer, is not copied. Valid while the reducer
  /// lives; else kInvalidInput.
  virtual Result<Buffer> place_of(int gradient) = 0;

  /// Waits until every gradient of the step is summed; ends the step.
  virtual Status wait_all() = 0;

  virtual ReducerStats stats() const = 0;
  /// `kPlanned`, by group, of the step that ended last: nanoseconds from its last gradient until it
  /// was its turn, since one before it was not ready. Else empty.
  virtual std::vector<std::int64_t> delays() const = 0;
};

}  // namespace agpcs
