// SPDX-License-Identifier: Apache-2.0
// Overlap: what computing and communicating at the same time costs this device.
#pragma once

#include "ir/profile.h"
#include "tools/profile_team.h"

#include <agpcs/executor.h>
#include <agpcs/status.h>

#include <functional>

namespace agpcs {

struct OverlapWork {
  std::function<Status()> compute;  ///< one repetition; on the calling thread
  Buffer buffer;                    ///< all-reduced by ring, again and again, on another thread
  double reduce_seconds = 0;        ///< of one all-reduce, about
  double seconds = 2;               ///< of a window
  double limit = 120;               ///< seconds until every rank has its window behind it
};

/// By all ranks of `team`, which are all of the transport, at the same time, so that what they
/// share (cores, memory, links) counts: each rank computes alone, then all all-reduce alone, then
/// both together. A rank goes on computing and reducing until the slowest has its window behind it.
/// The last window is longer where computing leaves all-reduces little room, until some have ended.
Result<MeasuredOverlap> measure_overlap(RankTeam& team, int rank, const OverlapWork& work);

}  // namespace agpcs
