// SPDX-License-Identifier: Apache-2.0
// Checks that every transport makes before it starts: whether a group or message is possible.
#pragma once

#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// The members of a group: ascending ranks, and the host of each.
struct RankGroup {
  int id = 0;
  std::vector<int> ranks;
  std::vector<int> hosts;  ///< parallel to `ranks`
};

/// Returns the group that `Transport::open_group` of `rank` of `size` got, or what is wrong with
/// it.
Result<RankGroup> make_rank_group(int id, const std::vector<int>& ranks,
                                  const std::vector<int>& host_of_rank, int rank, int size);

/// Returns Ok if `flow` can be the number of a flow.
Status check_flow_number(int flow);

/// Returns Ok if `rank` of `size` can exchange a message tagged `tag` with `peer`.
Status check_message(int rank, int size, int peer, std::uint64_t tag);

}  // namespace agpcs
