// SPDX-License-Identifier: Apache-2.0
// Checks that every transport makes before it starts: whether a group, a message or a collective is
// possible.
#pragma once

#include <agpcs/buffer.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace agpcs {

/// The members of a group: ascending ranks, and the host of each; and the place of one of them,
/// this rank. The first member of a host is its leader.
struct RankGroup {
  int id = 0;
  std::vector<int> ranks;
  std::vector<int> hosts;  ///< parallel to `ranks`

  std::size_t me = 0;        ///< this rank is ranks[me]
  std::vector<int> local;    ///< the ranks on its host, the leader first
  std::vector<int> leaders;  ///< of all hosts, ascending

  /// Its place in the reduction tree (ir/plan/reduction_tree.h), whose root is ranks[0].
  struct TreePlace {
    int parent = -1;            ///< rank; -1: this rank is the root
    std::vector<int> children;  ///< ranks, at most two
    int depth = 0;              ///< edges to the root
  };
  TreePlace tree;

  /// Returns the place of `rank`, a member, in `ranks`.
  std::size_t index_of(int rank) const;
  /// Returns whether the members of each host stand side by side in `ranks`.
  bool hosts_are_contiguous() const;
};

enum class Collective : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll };
/// "all_reduce", "reduce_scatter", "all_gather", "all_to_all"
std::string_view name_of(Collective kind);
/// Returns whether elements of several ranks are added.
inline bool sums(Collective kind) {
  return kind == Collective::kAllReduce || kind == Collective::kReduceScatter;
}
/// Returns whether every rank ends with the whole buffer.
inline bool gathers(Collective kind) {
  return kind == Collective::kAllReduce || kind == Collective::kAllGather;
}

/// The elements of each rank of a group, in the order of its ranks; of an all-to-all, those that go
/// to each, then those that come from each. The caller of a collective keeps them.
using Parts = std::vector<std::int64_t>;

/// Returns the group that `Transport::open_group` of `rank` of `size` got, or what is wrong with
/// it.
Result<RankGroup> make_rank_group(int id, const std::vector<int>& ranks,
                                  const std::vector<int>& host_of_rank, int rank, int size);

/// Returns Ok if `flow` can be the number of a flow.
Status check_flow_number(int flow);

/// Returns Ok if `kind` can be carried out over `group`, by `algorithm` without a flow. `parts` is
/// null for an all-reduce.
Status check_collective(Collective kind, const Buffer& buffer, AllReduce algorithm,
                        const Parts* parts, const RankGroup& group);
/// Returns Ok if `kind` can be carried out on elements of `type`.
Status check_type(Collective kind, DType type);

/// Returns Ok if `rank` of `size` can exchange a message tagged `tag` with `peer`.
Status check_message(int rank, int size, int peer, std::uint64_t tag);

}  // namespace agpcs
