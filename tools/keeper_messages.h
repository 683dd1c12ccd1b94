// SPDX-License-Identifier: Apache-2.0
// What the keepers of an elastic job say to one another: events' texts (BootstrapEvent).
#pragma once

#include "tools/rank_process.h"

#include <agpcs/status.h>

#include <string>
#include <variant>
#include <vector>

namespace agpcs {

// A keeper's seat is the rank that the launcher gave it. A generation is the ranks of one plan,
// from 0 on.

/// Orders, from seat 0 to all.
struct LookOrder {
  std::string file;  ///< to be seen in --save
};
struct StartOrder {
  int generation = 0;
  std::string address;     ///< of its rank 0
  int port = 0;            ///< likewise
  int pieces = 0;          ///< of the plan's text, stored under `plan_key`; 0: the plan they have
  std::string label;       ///< of the plan's file
  std::vector<int> seats;  ///< by rank
};
struct EndOrder {
  int generation = 0;
};
struct StopOrder {
  int seat = 0;  ///< whose rank is to be asked to stop
};
struct FinishOrder {
  Status status;  ///< the job's
};

/// Reports, from any seat.
struct ReadyReport {
  std::string address;  ///< where its rank would serve, if it were rank 0
  int port = 0;
};
struct EndedReport {
  int generation = 0;
  RankEnd end;
};
struct AskedReport {
  int signal = 0;  ///< by which the job is asked to stop
};
struct BrokenReport {
  Status status;  ///< why this keeper cannot go on
};

using KeeperMessage = std::variant<LookOrder, StartOrder, EndOrder, StopOrder, FinishOrder,
                                   ReadyReport, EndedReport, AskedReport, BrokenReport>;

std::string text_of(const KeeperMessage& message);
/// kInternal: it is none.
Result<KeeperMessage> parse_keeper_message(const std::string& text);

/// The bootstrap's key of piece `piece` of the plan of `generation`.
std::string plan_key(int generation, int piece);

}  // namespace agpcs
