// SPDX-License-Identifier: Apache-2.0
// TeamScript: what a team does within its passes, in the form that the engine runs.
#pragma once

#include "cost_model/network/link_model.h"

#include <vector>

namespace agpcs {

/// The passes of a team for a number of samples. Members compute on their own until they meet in a
/// collective; then they wait for its end.
struct TeamScript {
  struct Meeting {
    double before = 0;  ///< seconds that the slowest member computes since the meeting before
    int exchange = 0;   ///< index in `exchanges`
  };
  struct Pass {
    std::vector<Meeting> meetings;
    double after = 0;      ///< seconds behind the last meeting
    double exchanged = 0;  ///< of these, seconds of collectives that have no meeting (`settled`)
    double least = 0;      ///< no pass is shorter, whatever else is on its links
  };
  Pass forward, backward;
  Pass step_end;  ///< follows the step's last backward pass
  std::vector<Exchange> exchanges;

  /// Returns the script of the same team where nothing else is ever on its links: collectives take
  /// the time that they take alone, `lone` by index in `exchanges`, and need no meetings.
  TeamScript settled(const std::vector<double>& lone) const;
};

}  // namespace agpcs
