// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/rank_group.h"

#include "ir/base/at.h"
#include "ir/plan/reduction_tree.h"
#include "runtime/support/sum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

namespace agpcs {
namespace {

constexpr int kMaxGroup = 65535;
constexpr int kMaxFlow = 65535;
constexpr std::uint64_t kTagLimit = std::uint64_t{1} << 62;

void find_levels(RankGroup& group) {
  std::vector<int> seen;
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    const int host = group.hosts[i];
    if (host == group.hosts[group.me]) group.local.push_back(group.ranks[i]);
    if (std::find(seen.begin(), seen.end(), host) != seen.end()) continue;
    seen.push_back(host);
    group.leaders.push_back(group.ranks[i]);
  }
}

void find_tree_place(RankGroup& group) {
  const ReductionTree tree = reduction_tree(group.hosts);
  const ReductionTree::Member& member = tree.members[group.me];
  if (member.parent >= 0) group.tree.parent = group.ranks[at(member.parent)];
  for (const int child : member.children) {
    if (child >= 0) group.tree.children.push_back(group.ranks[at(child)]);
  }
  group.tree.depth = member.depth;
}

Status check_parts(Collective kind, const Buffer& buffer, const Parts& parts,
                   const RankGroup& group) {
  const std::size_t ranks = group.ranks.size();
  const bool both_ways = kind == Collective::kAllToAll;
  if (parts.size() != (both_ways ? 2 * ranks : ranks)) {
    return invalid_input(fmt::format("{}: {} parts for the {} ranks {} of group {}", name_of(kind),
                                     parts.size(), ranks, fmt::join(group.ranks, ","), group.id));
  }
  if (both_ways && (parts[group.me] != 0 || parts[ranks + group.me] != 0)) {
    return invalid_input(fmt::format("{}: rank {} has parts for itself, of {} and {} elements",
                                     name_of(kind), group.ranks[group.me], parts[group.me],
                                     parts[ranks + group.me]));
  }
  const std::size_t elements = buffer.bytes / size_of(buffer.type);
  std::size_t sum = 0;  // wraps around at 2^64, which no sum of parts within `elements` reaches
  bool within = true;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] < 0) {
      return invalid_input(fmt::format("{}: the part of rank {} has {} elements, of {}",
                                       name_of(kind), group.ranks[i % ranks], parts[i], elements));
    }
    sum += static_cast<std::size_t>(parts[i]);
    within = within && sum <= elements;
  }
  if (within && sum * size_of(buffer.type) == buffer.bytes) return {};
  return invalid_input(fmt::format(
      "{}: the parts {} have {} elements, the buffer has {} ({} bytes "
      "of {})",
      name_of(kind), fmt::join(parts, ","), sum, elements, buffer.bytes, name_of(buffer.type)));
}

}  // namespace

std::size_t RankGroup::index_of(int rank) const {
  return static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) -
                                  ranks.begin());
}

bool RankGroup::hosts_are_contiguous() const {
  std::size_t runs = hosts.empty() ? 0 : 1;
  for (std::size_t i = 1; i < hosts.size(); ++i) runs += hosts[i] != hosts[i - 1] ? 1 : 0;
  return runs == leaders.size();
}

std::string_view name_of(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllToAll:
      return "all_to_all";
  }
  return {};
}

Result<RankGroup> make_rank_group(int id, const std::vector<int>& ranks,
                                  const std::vector<int>& host_of_rank, int rank, int size) {
  if (id < 0 || id > kMaxGroup) {
    return invalid_input(fmt::format("group {} is not within 0 and {}", id, kMaxGroup));
  }
  if (!std::is_sorted(ranks.begin(), ranks.end()) ||
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return invalid_input(
        fmt::format("group {}: ranks {} are not ascending", id, fmt::join(ranks, ",")));
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), rank)) {
    return invalid_input(fmt::format("group {}: ranks {} do not contain this rank, {}", id,
                                     fmt::join(ranks, ","), rank));
  }
  if (ranks.front() < 0 || ranks.back() >= size) {
    return invalid_input(fmt::format("group {}: ranks {} are not within 0 and {}", id,
                                     fmt::join(ranks, ","), size - 1));
  }
  if (host_of_rank.size() != static_cast<std::size_t>(size)) {
    return invalid_input(fmt::format("group {}: hosts of {} ranks given, there are {}", id,
                                     host_of_rank.size(), size));
  }
  RankGroup group;
  group.id = id;
  group.ranks = ranks;
  for (const int member : ranks) group.hosts.push_back(host_of_rank[at(member)]);
  group.me = group.index_of(rank);
  find_levels(group);
  find_tree_place(group);
  return group;
}

Status check_flow_number(int flow) {
  if (flow >= 0 && flow <= kMaxFlow) return {};
  return invalid_input(fmt::format("flow {} is not within 0 and {}", flow, kMaxFlow));
}

Status check_collective(Collective kind, const Buffer& buffer, AllReduce algorithm,
                        const Parts* parts, const RankGroup& group) {
  if (algorithm == AllReduce::kFlow) {
    return invalid_input(kind == Collective::kAllReduce
                             ? "all_reduce: a flow is opened first, and named to all_reduce_flow"
                             : fmt::format("{}: flow is not one of its algorithms: ring, "
                                           "hierarchical, tree",
                                           name_of(kind)));
  }
  AGPCS_RETURN_IF_ERROR(check_type(kind, buffer.type));
  return parts == nullptr ? Status() : check_parts(kind, buffer, *parts, group);
}

Status check_type(Collective kind, DType type) {
  if (!sums(kind) || can_sum(type)) return {};
  return invalid_input(fmt::format("{}: no sum of {} values", name_of(kind), name_of(type)));
}

Status check_message(int rank, int size, int peer, std::uint64_t tag) {
  if (peer < 0 || peer >= size || peer == rank) {
    return invalid_input(
        fmt::format("rank {} has no peer {}: there are {} ranks", rank, peer, size));
  }
  if (tag >= kTagLimit) return invalid_input(fmt::format("tag {} is not below 2^62", tag));
  return {};
}

}  // namespace agpcs
