// SPDX-License-Identifier: Apache-2.0
// FlowProgram: what one member of a flow (PlanFlow) receives and sends, and what waits for what;
// made once, when the flow is opened, and good for buffers of any size.
#pragma once

#include <agpcs/plan.h>

#include <cstddef>
#include <vector>

namespace agpcs {

struct FlowReceive {
  int peer = 0;  ///< rank
  int chunk = 0;
  int round = 0;
  bool adds = false;       ///< to what is there; else takes its place
  std::vector<int> lines;  ///< with sends that wait for it
};

struct FlowSend {
  int chunk = 0;
  int round = 0;
  int after = -1;  ///< leaves when this receive is done; -1: at once
};

/// The messages to one other member, in the order in which they leave.
struct FlowLine {
  int peer = 0;  ///< rank
  std::vector<FlowSend> sends;
};

/// A round in which the member has a part, with FlowOrder::kRounds. What it begins with.
struct FlowRound {
  int round = 0;
  std::vector<int> tells;      ///< ranks that wait for this one to come here
  std::vector<int> waits_for;  ///< ranks
};

struct FlowProgram {
  int chunks = 0;                     ///< of the buffer: members x sub-chunks
  std::vector<FlowReceive> receives;  ///< by round, reductions first, then sender, then chunk
  std::vector<FlowLine> lines;        ///< by peer
  std::size_t widest = 0;             ///< most receives of a round
  std::vector<FlowRound> rounds;      ///< ascending; none with FlowOrder::kReceivers
};

/// What member `member` of `ranks` does. Needs: `verify_flow(flow, ranks.size())`.
FlowProgram flow_program(const PlanFlow& flow, const std::vector<int>& ranks, int member);

}  // namespace agpcs
