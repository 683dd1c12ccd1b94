// SPDX-License-Identifier: Apache-2.0
// The tree of the all-reduce algorithm `tree`: one description for the runtime, which sends along
// it, and the cost model, which says what that takes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// Pieces go up, summed on the way, and down again from the root, up and down at the same time.
/// Every member has at most two children; each host is a connected part, entered over one edge from
/// another.
///
/// Hosts, in order of their first member, are a heap: the parent of host h is host (h - 1) / 2. The
/// first member of a host is the one below its parent's. Its first child host hangs on its first
/// member, the second on its second member (on the first where there is no second). A member with a
/// child host has one member of its own host below, the next; the rest of the host is a heap below
/// these.
struct ReductionTree {
  struct Member {
    int parent = -1;  ///< -1: the root
    std::array<int, 2> children = {-1, -1};
    int depth = 0;  ///< edges to the root
  };
  std::vector<Member> members;  ///< as given
  std::vector<int> order;       ///< of all members, parents before children; the root first
  int depth = 0;                ///< of the deepest member

  int parent_of(int member) const { return members[static_cast<std::size_t>(member)].parent; }
};

/// `host_of_member`: any numbers, equal for members of one host. Cost: O(members log hosts).
ReductionTree reduction_tree(std::span<const int> host_of_member);

/// Bytes of a piece of a buffer of `bytes` (the last one may be shorter): a thirty-second part of
/// it, at least 64 KiB, at most 1 MiB; a multiple of 8.
std::int64_t tree_piece_bytes(std::int64_t bytes);
/// How many pieces that makes; 1 for an empty buffer.
std::int64_t tree_pieces(std::int64_t bytes);

}  // namespace agpcs
