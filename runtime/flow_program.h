// SPDX-License-Identifier: Apache-2.0
// FlowProgram: what one member of a flow (PlanFlow) receives and sends, and what waits for what;
// made once, when the flow is opened, and good for buffers of any size.
#pragma once

#include <agpcs/plan.h>

#include <cstddef>
#include <vector>

namespace agpcs {

/// A receive may add to a chunk, and a send leave, once receive `after` of the same chunk is done;
/// -1: at once.
struct FlowReceive {
  int peer = 0;  ///< rank
  int chunk = 0;
  int step = 0;
  bool adds = false;       ///< to what is there; else takes its place
  int after = -1;          ///< index into FlowProgram::receives
  std::vector<int> lines;  ///< with sends that wait for it
};

struct FlowSend {
  int chunk = 0;
  int step = 0;
  int after = -1;  ///< index into FlowProgram::receives
};

/// The messages to one other member, in the order in which they leave.
struct FlowLine {
  int peer = 0;  ///< rank
  std::vector<FlowSend> sends;
};

struct FlowProgram {
  int chunks = 0;  ///< of the buffer: members x sub-chunks
  /// By step, then sender, then chunk: of those that add to a chunk each waits for the one before,
  /// so that a sum does not depend on what comes first.
  std::vector<FlowReceive> receives;
  std::vector<FlowLine> lines;  ///< by peer
  /// Indices of receives that one thread waits for, in order: those from some of the peers. Every
  /// receive is in one of them. At most `kMostLanes`.
  std::vector<std::vector<int>> lanes;

  static constexpr std::size_t kMostLanes = 8;
};

/// What member `member` of `ranks` does. Needs: `verify_flow(flow, ranks.size())`.
FlowProgram flow_program(const PlanFlow& flow, const std::vector<int>& ranks, int member);

}  // namespace agpcs
