// SPDX-License-Identifier: Apache-2.0
// FlowProgram: what one member of a flow (PlanFlow) receives and sends, and which message waits for
// which. It is made once, when the flow is opened, and serves buffers of any size.
#pragma once

#include <agpcs/plan.h>

#include <cstddef>
#include <vector>

namespace agpcs {

struct FlowReceive {
  int peer = 0;  ///< rank
  int chunk = 0;
  int round = 0;
  bool adds = false;       ///< adds to what is there; otherwise replaces it
  std::vector<int> lines;  ///< lines that have sends which wait for this receive
};

struct FlowSend {
  int chunk = 0;
  int round = 0;
  int after = -1;  ///< the send leaves when this receive is done; -1: at once
};

/// The messages to one other member, in the order in which they leave.
struct FlowLine {
  int peer = 0;  ///< rank
  std::vector<FlowSend> sends;
};

/// With FlowOrder::kRounds: how a member begins a round in which it has a part.
struct FlowRound {
  int round = 0;
  std::vector<int> tells;      ///< ranks that wait until this one begins the round
  std::vector<int> waits_for;  ///< ranks that this one waits for
};

struct FlowProgram {
  int chunks = 0;                     ///< chunks of the buffer: members x sub-chunks
  std::vector<FlowReceive> receives;  ///< by round, reductions first, then by sender and chunk
  std::vector<FlowLine> lines;        ///< by peer
  std::size_t widest = 0;             ///< most receives of a round
  std::vector<FlowRound> rounds;      ///< ascending; none with FlowOrder::kReceivers
};

/// Returns what member `member` of `ranks` does. Needs: `verify_flow(flow, ranks.size())` finds no
/// error.
FlowProgram flow_program(const PlanFlow& flow, const std::vector<int>& ranks, int member);

}  // namespace agpcs
