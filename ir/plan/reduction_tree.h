// SPDX-License-Identifier: Apache-2.0
// The tree of the all-reduce algorithm `tree`. The runtime sends along it, and the cost model
// computes its time from it; both use this one description.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

/// A tree of the members of an all-reduce. Pieces of the buffer go up and are summed on the way,
/// and go down again from the root; both directions run at the same time. Every member has at most
/// two children. The members of a host are a connected part of the tree, which one edge enters from
/// another host.
///
/// The hosts, in order of their first member, form a heap: the parent of host h is host (h - 1) /
/// 2. The tree enters a host at its first member. A host's first child host hangs on its first
/// member, the second child host on its second member (on the first if the host has only one). A
/// member with a child host has one child in its own host, the next member; the rest of the host is
/// a heap below these.
struct ReductionTree {
  struct Member {
    int parent = -1;  ///< -1: the root
    std::array<int, 2> children = {-1, -1};
    int depth = 0;  ///< edges to the root
  };
  std::vector<Member> members;  ///< in the order given
  std::vector<int> order;       ///< all members, parents before children; the root first
  int depth = 0;                ///< depth of the deepest member

  int parent_of(int member) const { return members[static_cast<std::size_t>(member)].parent; }
};

/// Returns the members of each host, hosts and members in order of appearance.
std::vector<std::vector<int>> members_by_host(std::span<const int> host_of_member);

/// Builds the tree. `host_of_member` has any numbers that are equal for members of one host. Cost:
/// O(members log hosts).
ReductionTree reduction_tree(std::span<const int> host_of_member);

/// Returns the bytes of a piece of a buffer of `bytes` (the last piece may be shorter): a
/// thirty-second part of the buffer, at least 64 KiB, at most 1 MiB; a multiple of 8.
std::int64_t tree_piece_bytes(std::int64_t bytes);
/// Returns the number of pieces of a buffer of `bytes`; 1 for an empty buffer.
std::int64_t tree_pieces(std::int64_t bytes);

}  // namespace agpcs
