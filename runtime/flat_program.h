// SPDX-License-Identifier: Apache-2.0
// FlatProgram: one rank's program with everything resolved that can be: peers, tags, groups, and
// which event waits for which. A step is then a walk over arrays.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// A transfer of one instruction, with the tag that both ends derive from the plan.
struct FlatTransfer {
  Transfer transfer;
  std::uint64_t tag = 0;
};

/// Instruction i completes event i. The event "bucket b has its last gradient" is
/// `FlatProgram::gradient_events[b]`.
struct FlatInstruction {
  InstructionId id;
  std::string name;  ///< as the plan's text spells it, "recv c0 mb=3"
  std::vector<std::size_t> after;
  std::vector<FlatTransfer> transfers;  ///< of sends and receives
  AllReduce algorithm = AllReduce::kRing;
  int flow = -1;      ///< of an all_reduce by `kFlow`: index into Plan::flows
  int group = 0;      ///< of all_reduce and report
  bool last = false;  ///< a backward: the step's last
};

struct FlatProgram {
  std::vector<FlatInstruction> instructions;
  std::size_t event_count = 0;
  /// By StreamKind: indices of its instructions in order.
  std::array<std::vector<std::size_t>, kStreamKindCount> streams;
  /// released[k]: the sends, receives and reports whose buffers exist (or may be asked for) once k
  /// instructions of the compute stream are done, and not before.
  std::vector<std::vector<std::size_t>> released;
  std::vector<std::size_t> gradient_events;      ///< by bucket of the plan; kNoEvent: not ours
  std::vector<std::size_t> bucket_instructions;  ///< by bucket: its all_reduce; kNoEvent: none
  static constexpr std::size_t kNoEvent = static_cast<std::size_t>(-1);
};

/// The group of all ranks; the group of stage i is i.
int world_group(const Plan& plan);
/// Index of the host of each rank's device.
std::vector<int> hosts_of_ranks(const Plan& plan);
/// "volta/1", the device of `rank`.
std::string device_of_rank(const Plan& plan, int rank);

/// Needs: `plan` is verified and has `rank`. Errors: more tensors or micro-batches than tags exist.
Result<FlatProgram> flatten(const Plan& plan, int rank);

}  // namespace agpcs
