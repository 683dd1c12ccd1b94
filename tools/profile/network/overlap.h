// SPDX-License-Identifier: Apache-2.0
// Measures overlap: what it costs this device to compute and communicate at the same time.
#pragma once

#include "ir/cluster/profile.h"
#include "tools/profile/network/team.h"

#include <agpcs/buffer.h>
#include <agpcs/status.h>

#include <functional>

namespace agpcs {

struct OverlapWork {
  std::function<Status()> compute;  ///< one repetition, on the calling thread
  Buffer buffer;                    ///< all-reduced by ring repeatedly on another thread
  double reduce_seconds = 0;        ///< time of one all-reduce, about
  double seconds = 2;               ///< length of a window
  double limit = 120;               ///< seconds within which every rank must finish its window
};

/// Measures overlap. All ranks of `team`, which are all ranks of the transport, call it at the same
/// time, so that the effects of what they share (cores, memory, links) show. First each rank
/// computes alone, then all ranks only all-reduce, then they do both together. A rank goes on
/// computing and reducing until the slowest rank has finished its window. If computing leaves
/// little room for all-reduces, the last window is longer, until some have ended.
Result<Overlap> measure_overlap(RankTeam& team, int rank, const OverlapWork& work);

}  // namespace agpcs
