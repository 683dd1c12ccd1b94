// SPDX-License-Identifier: Apache-2.0
// HeadCount: what the keepers of an elastic job have reported, and which ranks are left.
#pragma once

#include "tools/run/keeper/messages.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>

#include <optional>
#include <vector>

namespace agpcs {

/// A state that depends on the events that it takes and on nothing else.
class HeadCount {
 public:
  explicit HeadCount(int seats);

  void take(const BootstrapEvent& event);
  /// Begins `generation`, whose ranks have been started. `seats` are by rank.
  void begin(int generation, std::vector<int> seats);
  /// Counts every rank that has not ended by now as lost.
  void stop_waiting();

  /// Returns the report of a seat that is ready; nullopt before that report.
  const std::optional<ReadyReport>& ready(int seat) const {
    return ready_[static_cast<std::size_t>(seat)];
  }
  bool all_ready() const;
  int signal() const { return signal_; }  ///< signal that asked the job to stop; 0: none
  int asked_seat() const { return asked_seat_; }
  /// Returns why the job cannot go on, whichever ranks are left: a keeper failed, or was lost
  /// before the first start.
  const Status& broken() const { return broken_; }

  // These concern the running generation.
  const std::vector<int>& seats() const { return seats_; }
  bool has_rank(int seat) const;
  bool failing() const;   ///< a rank has ended with a failure
  bool complete() const;  ///< all have ended
  /// Returns the lost ranks: `lost_ranks`, and ranks whose keeper is lost, unless they were done.
  std::vector<int> lost() const;
  Status verdict() const;

 private:
  void take_loss(int seat, const std::string& why);
  void take_end(int seat, RankEnd end);
  std::vector<RankEnd> ends() const;

  std::vector<std::optional<ReadyReport>> ready_;  // by seat
  std::vector<char> gone_;                         // by seat
  int signal_ = 0, asked_seat_ = -1;
  Status broken_;
  int generation_ = -1;
  std::vector<int> seats_;                    // by rank
  std::vector<std::optional<RankEnd>> ends_;  // by rank
};

}  // namespace agpcs
