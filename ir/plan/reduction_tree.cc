// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/reduction_tree.h"

#include "ir/base/at.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace agpcs {
namespace {

void attach(ReductionTree& tree, int member, int parent) {
  ReductionTree::Member& child = tree.members[at(member)];
  child.parent = parent;
  child.depth = tree.members[at(parent)].depth + 1;
  tree.depth = std::max(tree.depth, child.depth);
  std::array<int, 2>& children = tree.members[at(parent)].children;
  children[children[0] < 0 ? 0 : 1] = member;
}

}  // namespace

std::vector<std::vector<int>> members_by_host(std::span<const int> host_of_member) {
  std::vector<std::vector<int>> hosts;
  std::map<int, std::size_t> known;
  for (std::size_t i = 0; i < host_of_member.size(); ++i) {
    const auto [entry, added] = known.try_emplace(host_of_member[i], hosts.size());
    if (added) hosts.emplace_back();
    hosts[entry->second].push_back(static_cast<int>(i));
  }
  return hosts;
}

ReductionTree reduction_tree(std::span<const int> host_of_member) {
  ReductionTree tree;
  tree.members.resize(host_of_member.size());
  const std::vector<std::vector<int>> hosts = members_by_host(host_of_member);
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const std::vector<int>& members = hosts[h];
    if (h > 0) {
      const std::vector<int>& above = hosts[(h - 1) / 2];
      attach(tree, members[0], above[std::min((h - 1) % 2, above.size() - 1)]);
    }
    const std::size_t child_hosts =
        std::min<std::size_t>(2, hosts.size() - std::min(hosts.size(), 2 * h + 1));
    const std::size_t stem = std::min(child_hosts, members.size() - 1);
    tree.order.push_back(members[0]);
    for (std::size_t i = 1; i < members.size(); ++i) {
      attach(tree, members[i], members[i <= stem ? i - 1 : stem + (i - stem - 1) / 2]);
      tree.order.push_back(members[i]);
    }
  }
  return tree;
}

std::int64_t tree_piece_bytes(std::int64_t bytes) {
  constexpr std::int64_t kPieces = 32, kLeast = 64 << 10, kMost = 1 << 20, kMultiple = 8;
  const std::int64_t part = (bytes / kPieces + kMultiple) / kMultiple * kMultiple;
  return std::clamp(part, kLeast, kMost);
}

std::int64_t tree_pieces(std::int64_t bytes) {
  const std::int64_t piece = tree_piece_bytes(bytes);
  return std::max<std::int64_t>(1, (bytes + piece - 1) / piece);
}

}  // namespace agpcs
