// SPDX-License-Identifier: Apache-2.0
// A GradientReducer sums a step's gradients over ranks on which they may become ready in different
// orders. docs/reference/gradient_reducer.md says which way of coordination suits whom.
#pragma once

#include <agpcs/buffer.h>
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

/// A gradient, declared once before the first step.
struct Gradient {
  std::string name;
  DType type = DType::kFp32;
  std::int64_t elements = 0;
};

/// Gradients that are reduced together.
struct GradientGroup {
  std::string name;
  std::vector<int> gradients;              ///< indices, in their order in the group's memory
  AllReduce algorithm = AllReduce::kRing;  ///< used with `kPlanned`
  int flow = -1;                           ///< with `kFlow`: index into GradientSet::flows
};

/// What is reduced and over which ranks. All ranks pass the same set.
struct GradientSet {
  std::vector<Gradient> gradients;
  /// With `kPlanned`: each gradient is in exactly one group, and the groups are in the order in
  /// which they are reduced. Otherwise: no gradient is in two groups, and a gradient in no group is
  /// a group of its own.
  std::vector<GradientGroup> groups;
  std::vector<PlanFlow> flows;
  std::vector<int> ranks;         ///< ascending; empty: all ranks of the transport
  std::vector<int> host_of_rank;  ///< host of each rank of the transport; empty: all on one host
};

/// Returns the gradients, buckets, order and algorithms of the stage of `rank`: what a replayer of
/// the same plan reduces, in the order of the same program. Needs: a verified plan. Error: the
/// stage shares a bucket with another one, so that its gradients are not summed over its ranks
/// alone.
Result<GradientSet> gradients_of(const Plan& plan, int rank);

/// How ranks agree on what to reduce next.
enum class Coordination : std::uint8_t {
  /// Works in cycles: ranks send what has become ready to the first rank, which answers with what
  /// is ready on all ranks (Horovod as of 2018).
  kCoordinator,
  /// Works like kCoordinator with a cache of answers: one pass over the ranks carries a bit for
  /// each cached answer, and only the other answers need the coordinator (Romero et al., NSDI 2022,
  /// section 3.1).
  kCached,
  /// Ranks send nothing but the sums: groups are reduced in the given order, each as soon as it and
  /// all groups before it are ready. The same inputs give the same bytes.
  kPlanned,
};
std::string_view name_of(Coordination coordination);  ///< "coordinator", "cached", "planned"
std::optional<Coordination> coordination_named(std::string_view name);

/// Options of a reducer; all ranks pass the same ones, except `scale_in`.
struct ReducerOptions {
  Coordination coordination = Coordination::kPlanned;
  /// Longest wait for any one thing, including other ranks' computations. A step that lacks a
  /// gradient ends by then with an error on every rank. The rank that lacks it fails after half of
  /// this time, counted from the start of its `wait_all`, so all ranks learn which one it was.
  std::chrono::milliseconds limit{300000};

  // The following options do not concern `kPlanned`. Defaults are those of Horovod 0.28.1
  // (horovod/common/operations.cc, global_state.h; its documentation still says 64 MB, the default
  // before version 0.21); but Horovod fuses gradients of any size.
  std::int64_t alone_bytes = std::int64_t{1} << 20;     ///< gradients so large are not fused
  std::int64_t fusion_bytes = std::int64_t{128} << 20;  ///< most in one all-reduce; 0: no fusion
  std::chrono::microseconds cycle{1000};  ///< least time from one cycle's start to the next
  int cache_capacity = 1024;              ///< `kCached`: most answers kept; a group is one answer
  AllReduce algorithm = AllReduce::kRing;

  /// fp16 or bf16: the type in which fp32 gradients travel and are summed; other gradients keep
  /// their type. With u = 2^-11 (fp16) or 2^-8 (bf16), n ranks, and x_r the element on rank r after
  /// `scale_in`, an element of the sum is off by at most ((1 + u)^n - 1) sum |x_r|: one rounding on
  /// the way in and n - 1 roundings of partial sums. In fp16 it may be off by n 2^-25 more. A value
  /// above 65,504 becomes infinite in fp16, one above 3.4e38 in bf16.
  std::optional<DType> wire_type;
  /// Gradients of floating-point types are multiplied by `scale_in` before they are summed (by a
  /// rank's share of the batch, if shares are unequal), and the sums are multiplied by `scale_out`.
  double scale_in = 1, scale_out = 1;

  int group = 0;       ///< number of the group that the reducer opens on the transport
  int first_flow = 0;  ///< number of its first flow there; the others follow
};

/// Counts of all steps so far on this rank.
struct ReducerStats {
  std::int64_t steps = 0;
  std::int64_t cycles = 0;            ///< negotiations
  std::int64_t coordinated = 0;       ///< negotiations that needed the coordinator
  std::int64_t control_messages = 0;  ///< sent in addition to payload; 0 with `kPlanned`
  std::int64_t control_bytes = 0;     ///< bytes in those messages
  std::int64_t control_ns = 0;  ///< time spent in negotiations, including waits for other ranks
  std::int64_t all_reduces = 0;
  std::int64_t payload_bytes = 0;  ///< bytes all-reduced, in the type in which they travelled
  std::int64_t copied_bytes = 0;   ///< bytes copied to fuse gradients or to change their type
  std::int64_t hits = 0;           ///< answers taken from the cache
  std::int64_t evictions = 0, invalidations = 0;
  /// `kPlanned`: what the plan's order cost: the sum over groups of `delays()`.
  std::int64_t delay_ns = 0;
};

/// Threads: any thread may call `submit` and `submit_absent` at any time between two returns of
/// `wait_all`; one thread at a time calls `wait_all`. While the reducer lives, nothing else may use
/// the transport. With `kPlanned`, this holds only for its collective stream.
///
///     auto reducer = GradientReducer::create(*gradients_of(plan, rank), *transport, options);
///     each step, as gradients become ready:  (*reducer)->submit("conv1.weight", buffer);
///     before the optimizer's step:           (*reducer)->wait_all();
///
/// Errors name the gradient. The first error on any rank aborts the transport and reaches all
/// ranks; every later call returns it.
class GradientReducer {
 public:
  /// Opens the group and the flows, and compares set and options over the ranks. If they differ,
  /// all ranks get an error that names the first difference and a rank. `transport` must outlive
  /// the reducer. All ranks of the set call it.
  static Result<std::unique_ptr<GradientReducer>> create(const GradientSet& set,
                                                         Transport& transport,
                                                         const ReducerOptions& options = {});
  /// Aborts the transport if a step is not complete.
  virtual ~GradientReducer() = default;

  /// Returns the index of a declared gradient, or -1 if no gradient has that name.
  virtual int index_of(std::string_view name) const = 0;

  /// Submits gradient `gradient` of this step, which is in `buffer`, in the host's memory. The
  /// caller leaves the buffer alone until `wait_all` returns; then it holds the sum. The call does
  /// not wait for other ranks. Without `kPlanned`, type and size may change from step to step if
  /// they do so on all ranks.
  /// Errors: the gradient came already in this step; with `kPlanned`, it has another type or size
  /// than declared.
  virtual Status submit(int gradient, const Buffer& buffer) = 0;
  Status submit(std::string_view name, const Buffer& buffer);

  /// Says that this rank has no such gradient in this step (a branch not taken). The gradient
  /// counts as zeros, and the sum of the other ranks' gradients is written to `sum`. Every gradient
  /// is submitted or absent in each step.
  virtual Status submit_absent(int gradient, const Buffer& sum) = 0;
  Status submit_absent(std::string_view name, const Buffer& sum);

  /// With `kPlanned` and no `wire_type`: returns where the gradient lies in its group's memory. A
  /// gradient that is computed there and submitted as this very buffer is not copied. The buffer is
  /// valid while the reducer lives. In other cases: kInvalidInput.
  virtual Result<Buffer> place_of(int gradient) = 0;

  /// Waits until every gradient of the step is summed, and ends the step. After an error, too, the
  /// buffers are the caller's again: nothing touches them any more.
  virtual Status wait_all() = 0;

  virtual ReducerStats stats() const = 0;
  /// With `kPlanned`: returns, by group, for the last completed step, the nanoseconds that the
  /// group was ready but waited for its turn because a group before it was not ready. Otherwise
  /// empty.
  virtual std::vector<std::int64_t> delays() const = 0;
};

}  // namespace agpcs
