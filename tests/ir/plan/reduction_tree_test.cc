// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/reduction_tree.h"

#include "ir/base/rng.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace agpcs {
namespace {

/// Parents by member; the root's is "-".
std::string text(const std::vector<int>& hosts) {
  const ReductionTree tree = reduction_tree(hosts);
  std::string out;
  for (const ReductionTree::Member& member : tree.members) {
    out += out.empty() ? "" : " ";
    out += member.parent < 0 ? "-" : std::to_string(member.parent);
  }
  return out + ", depth " + std::to_string(tree.depth);
}

TEST(ReductionTree, IsAHeapOnOneHost) {
  EXPECT_EQ(text({4}), "-, depth 0");
  EXPECT_EQ(text({4, 4}), "- 0, depth 1");
  EXPECT_EQ(text({4, 4, 4, 4, 4, 4, 4}), "- 0 0 1 1 2 2, depth 2");
}

TEST(ReductionTree, IsAHeapOfHostsWithOneMemberEach) {
  EXPECT_EQ(text({3, 1, 2, 0}), "- 0 0 1, depth 2");
}

TEST(ReductionTree, HangsChildHostsOnTheFirstTwoMembers) {
  EXPECT_EQ(text({0, 0, 0, 0, 1, 1, 1, 1}), "- 0 1 1 0 4 4 5, depth 3");
  EXPECT_EQ(text({0, 0, 0, 0, 0, 1, 1, 2, 2}), "- 0 1 2 2 0 5 1 7, depth 3");
  EXPECT_EQ(text({0, 0, 1, 2}), "- 0 0 1, depth 2");
  EXPECT_EQ(text({0, 1, 1, 2}), "- 0 1 0, depth 2");
}

TEST(ReductionTree, KeepsHostsTogetherWhoseMembersAreNotSideBySide) {
  EXPECT_EQ(text({0, 1, 0, 1}), "- 0 0 1, depth 2");
}

std::vector<int> random_hosts(Rng& rng) {
  std::vector<int> hosts(1 + rng.below(40));
  const std::uint64_t most = 1 + rng.below(hosts.size());
  for (int& host : hosts) host = static_cast<int>(rng.below(most));
  return hosts;
}

/// Children say the same as parents, and there is room for two a member.
void expect_binary(const ReductionTree& tree) {
  std::size_t edges = 0;
  for (std::size_t i = 0; i < tree.members.size(); ++i) {
    for (const int child : tree.members[i].children) {
      if (child < 0) continue;
      EXPECT_EQ(tree.parent_of(child), static_cast<int>(i));
      ++edges;
    }
  }
  EXPECT_EQ(edges, tree.members.size() - 1);
}

TEST(ReductionTree, IsBinaryAndEntersEachHostOnceForAnyHosts) {
  Rng rng(11);
  for (int round = 0; round < 300; ++round) {
    const std::vector<int> hosts = random_hosts(rng);
    const ReductionTree tree = reduction_tree(hosts);
    expect_binary(tree);
    std::map<int, int> entries;
    std::vector<bool> seen(hosts.size());
    ASSERT_EQ(tree.order.size(), hosts.size());
    for (const int member : tree.order) {
      const int parent = tree.parent_of(member);
      const int host = hosts[static_cast<std::size_t>(member)];
      if (parent < 0 || hosts[static_cast<std::size_t>(parent)] != host) ++entries[host];
      EXPECT_TRUE(parent < 0 || seen[static_cast<std::size_t>(parent)]);
      seen[static_cast<std::size_t>(member)] = true;
    }
    for (const auto& [host, count] : entries) EXPECT_EQ(count, 1) << "host " << host;
  }
}

TEST(ReductionTree, DepthGrowsWithTheLogarithm) {
  std::vector<int> hosts(4096);
  for (std::size_t i = 0; i < hosts.size(); ++i) hosts[i] = static_cast<int>(i / 8);
  EXPECT_LE(reduction_tree(hosts).depth, 20);
}

TEST(TreePieces, AreAThirtySecondPartWithinLimits) {
  EXPECT_EQ(tree_pieces(0), 1);
  EXPECT_EQ(tree_pieces(64 << 10), 1);
  EXPECT_EQ(tree_pieces((64 << 10) + 1), 2);
  EXPECT_EQ(tree_pieces(16 << 20), 32);
  EXPECT_EQ(tree_piece_bytes(64 << 20), 1 << 20);
  for (const std::int64_t bytes : {3'000'001, 4'194'303, 9'999'999}) {
    EXPECT_EQ(tree_piece_bytes(bytes) % 8, 0);
    EXPECT_LE(tree_pieces(bytes), 32);
  }
}

}  // namespace
}  // namespace agpcs
