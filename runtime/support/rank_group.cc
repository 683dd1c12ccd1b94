// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/rank_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

namespace agpcs {
namespace {

constexpr int kMaxGroup = 65535;
constexpr int kMaxFlow = 65535;
constexpr std::uint64_t kTagLimit = std::uint64_t{1} << 62;

}  // namespace

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
  RankGroup group{id, ranks, {}};
  for (const int member : ranks) {
    group.hosts.push_back(host_of_rank[static_cast<std::size_t>(member)]);
  }
  return group;
}

Status check_flow_number(int flow) {
  if (flow >= 0 && flow <= kMaxFlow) return {};
  return invalid_input(fmt::format("flow {} is not within 0 and {}", flow, kMaxFlow));
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
