// SPDX-License-Identifier: Apache-2.0
// HeadCount: what the keepers of an elastic job have said, and who is left.
#pragma once

#include "tools/keeper_messages.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>

#include <optional>
#include <vector>

namespace agpcs {

/// Follows from the events that it takes, and from nothing else.
class HeadCount {
 public:
  explicit HeadCount(int seats);

  void take(const BootstrapEvent& event);
  /// The ranks of `generation` are started; `seats` by rank.
  void begin(int generation, std::vector<int> seats);
  /// Who has not ended by now counts as lost.
  void stop_waiting();

  /// What a seat said when it was ready; nothing before.
  const std::optional<ReadyReport>& ready(int seat) const {
    return ready_[static_cast<std::size_t>(seat)];
  }
  bool all_ready() const;
  int signal() const { return signal_; }  ///< that asked the job to stop; 0: none
  int asked_seat() const { return asked_seat_; }
  /// Why the job cannot go on, whoever is left: a keeper that cannot, a loss before the first
  /// start.
  const Status& broken() const { return broken_; }

  // Of the running generation.
  const std::vector<int>& seats() const { return seats_; }
  bool has_rank(int seat) const;
  bool failing() const;   ///< a rank has ended, and not well
  bool complete() const;  ///< all have ended
  /// The ranks that are lost: `lost_ranks`, and those whose keeper is, unless they were done.
  std::vector<int> lost() const;
  Status verdict() const;

 private:
  void take_loss(int seat, const std::string& why);
  void take_end(int seat, RankEnd end);
  std::vector<RankEnd> ends() const;

  std::vector<std::optional<ReadyReport>> ready_;  // by seat
  std::vector<char> gone_;                         // likewise
  int signal_ = 0, asked_seat_ = -1;
  Status broken_;
  int generation_ = -1;
  std::vector<int> seats_;                    // by rank
  std::vector<std::optional<RankEnd>> ends_;  // likewise
};

}  // namespace agpcs
