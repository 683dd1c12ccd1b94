// SPDX-License-Identifier: Apache-2.0
// ResolvedProgram: one rank's program with peers, tags, groups and dependencies resolved. A step is
// then a walk over arrays.
#pragma once

#include "ir/plan/body/slices.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>
#include <agpcs/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// A transfer of one instruction, with the tag that both ends derive from the plan.
struct ResolvedTransfer {
  Transfer transfer;
  std::uint64_t tag = 0;
};

/// What this rank sums with a group of a bucket whose ranks hold unlike parts.
struct ResolvedSlice {
  int group = 0;  ///< its number
  RankSlice of;
};

/// Stands for "no instruction".
inline constexpr std::size_t kNoInstruction = static_cast<std::size_t>(-1);

struct ResolvedInstruction {
  InstructionId id;
  std::string name;  ///< as the plan's text spells it, "recv c0 mb=3"
  /// For a computation, by Stream: the last instruction there that it waits for. Where it waits for
  /// a gradient, the activation that went the other way has left, too.
  std::array<std::size_t, 3> awaits = {kNoInstruction, kNoInstruction, kNoInstruction};
  /// For a message or collective: how many computations are done once it has all that it waits for.
  /// An all_reduce or reduce_scatter also needs its bucket's gradients, which come during the last
  /// backward pass, or during that of its micro-batch.
  std::size_t release = 0;
  /// Of an all_reduce or reduce_scatter: how often its bucket has been reported by then.
  int reports = 1;
  /// Of a gather for a pass: its index in `ResolvedProgram::gathers`.
  std::size_t gather = 0;
  std::vector<ResolvedTransfer> transfers;  ///< used by sends and receives
  AllReduce algorithm = AllReduce::kRing;
  int flow = -1;                    ///< used by an all_reduce by `kFlow`: index into Plan::flows
  std::vector<std::int64_t> parts;  ///< used by reduce_scatter and all_gather
  int group = 0;                    ///< used by collectives
  /// Of an all_reduce beside unlike teams, in place of `group`: one collective for each.
  std::vector<ResolvedSlice> slices;
  int stage = 0;      ///< of a pass
  bool last = false;  ///< for a backward pass: it is its stage's last of the step
};

struct ResolvedProgram {
  std::vector<ResolvedInstruction> instructions;
  /// By StreamKind: indices of its instructions in order.
  std::array<std::vector<std::size_t>, kStreamKindCount> streams;
  /// By bucket of the plan: its all_reduce or last reduce_scatter; kNoInstruction: not ours.
  std::vector<std::size_t> sums;
  /// The gathers for passes, in their order. Each begins where a pass needs the one before it.
  std::vector<std::size_t> gathers;
};

/// Returns the transport's stream that carries `kind`, which must not be kCompute.
Stream transport_stream(StreamKind kind);

/// Resolves the program of `rank`. Needs: `plan` is verified and has `rank`. Errors: there are more
/// tensors or micro-batches than tags.
Result<ResolvedProgram> resolve(const Plan& plan, int rank);

}  // namespace agpcs
