// SPDX-License-Identifier: Apache-2.0
// Which elements of a tensor members of a team have, and which of them two members have in common.
#pragma once

#include "ir/team/placement.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns the elements of a part's axis that a member has, a range for each band, in the order in
/// which they lie in its tensor. Needs: `placement` is a part.
std::vector<UnitRange> part_elements(const std::vector<Division>& divisions,
                                     const TeamPlacement& placement, std::size_t member);

/// Returns the dims of what a member has of a tensor with `dims`.
std::vector<std::int64_t> member_dims(const std::vector<Division>& divisions,
                                      const TeamPlacement& placement, std::size_t member,
                                      std::vector<std::int64_t> dims);

/// A block of a tensor that one member, the giver, has, and another, the taker, is to have.
struct TeamBlock {
  /// Elements of an axis; of axes without an entry the block has all.
  struct Along {
    int axis = 0;
    std::int64_t giver = 0, taker = 0;  ///< where they begin in what either member has
    std::int64_t size = 0;
  };
  std::vector<Along> along;
};

/// Returns the blocks that `giver` has as `from` and `taker` as `to`, both in the order of the
/// giver's bands, and within them of the taker's. What lies as a copy or a sum is whole. The blocks
/// of all givers are all that the taker has, each element once, if `from` is a part.
std::vector<TeamBlock> shared_blocks(const std::vector<Division>& divisions,
                                     const TeamPlacement& from, std::size_t giver,
                                     const TeamPlacement& to, std::size_t taker);

}  // namespace agpcs
