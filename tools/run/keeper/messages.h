// SPDX-License-Identifier: Apache-2.0
// The messages between the keepers of an elastic job, as texts of events (BootstrapEvent).
#pragma once

#include "tools/run/processes/rank_process.h"

#include <agpcs/status.h>

#include <string>
#include <variant>
#include <vector>

namespace agpcs {

// A keeper's seat is the rank that the launcher gave it. A generation is the set of ranks that run
// one plan; generations count from 0.

/// Orders, which seat 0 sends to all.
struct LookOrder {
  std::string file;  ///< the file to look for in --save
};
struct StartOrder {
  int generation = 0;
  std::string address;  ///< address of the generation's rank 0
  int port = 0;         ///< port of the generation's rank 0
  /// Number of pieces of the plan's text, stored under `plan_key`; 0: the keepers have the plan.
  int pieces = 0;
  std::string label;       ///< label of the plan's file
  std::vector<int> seats;  ///< by rank
};
struct EndOrder {
  int generation = 0;
};
struct StopOrder {
  int seat = 0;  ///< the seat whose rank is to be asked to stop
};
struct FinishOrder {
  Status status;  ///< the job's status
};

/// Reports, which any seat sends.
struct ReadyReport {
  std::string address;  ///< where its rank would serve as rank 0
  int port = 0;
};
struct EndedReport {
  int generation = 0;
  RankEnd end;
};
struct AskedReport {
  int signal = 0;  ///< the signal that asks the job to stop
};
struct BrokenReport {
  Status status;  ///< why this keeper cannot go on
};

using KeeperMessage = std::variant<LookOrder, StartOrder, EndOrder, StopOrder, FinishOrder,
                                   ReadyReport, EndedReport, AskedReport, BrokenReport>;

std::string text_of(const KeeperMessage& message);
/// Parses a keeper's message. Error: kInternal if it is not one.
Result<KeeperMessage> parse_keeper_message(const std::string& text);

/// Returns the bootstrap's key for piece `piece` of the plan of `generation`.
std::string plan_key(int generation, int piece);

}  // namespace agpcs
