// SPDX-License-Identifier: Apache-2.0
// ResolvedProgram: one rank's program with everything resolved that can be: peers, tags, groups,
// and what waits for what. A step is then a walk over arrays.
#pragma once

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

/// Where there is no instruction.
inline constexpr std::size_t kNoInstruction = static_cast<std::size_t>(-1);

struct ResolvedInstruction {
  InstructionId id;
  std::string name;  ///< as the plan's text spells it, "recv c0 mb=3"
  /// Of a computation, by Stream: the last instruction there that it waits for.
  std::array<std::size_t, 3> awaits = {kNoInstruction, kNoInstruction, kNoInstruction};
  /// Of a message or collective: how many computations are done once it has all that it waits for.
  /// An all_reduce needs its bucket's gradients besides, which come during the last backward.
  std::size_t release = 0;
  std::vector<ResolvedTransfer> transfers;  ///< of sends and receives
  AllReduce algorithm = AllReduce::kRing;
  int flow = -1;      ///< of an all_reduce by `kFlow`: index into Plan::flows
  int group = 0;      ///< of all_reduce and report
  bool last = false;  ///< a backward: the step's last
};

struct ResolvedProgram {
  std::vector<ResolvedInstruction> instructions;
  /// By StreamKind: indices of its instructions in order.
  std::array<std::vector<std::size_t>, kStreamKindCount> streams;
  std::vector<std::size_t> all_reduces;  ///< by bucket of the plan; kNoInstruction: none of ours
};

/// The stream of the transport that carries `kind`, which is not kCompute.
Stream transport_stream(StreamKind kind);
/// The group of all ranks; the group of stage i is i.
int world_group(const Plan& plan);
/// Index of the host of each rank's device.
std::vector<int> hosts_of_ranks(const Plan& plan);
/// "volta/1", the device of `rank`.
std::string device_of_rank(const Plan& plan, int rank);

/// Needs: `plan` is verified and has `rank`. Errors: more tensors or micro-batches than tags exist.
Result<ResolvedProgram> resolve(const Plan& plan, int rank);

}  // namespace agpcs
