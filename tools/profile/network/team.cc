// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/network/team.h"

#include <algorithm>
#include <utility>

namespace agpcs {

bool RankTeam::has(int rank) const {
  return std::find(ranks_.begin(), ranks_.end(), rank) != ranks_.end();
}

Status RankTeam::open(const std::vector<int>& host_of_rank) {
  return transport_.open_group(group_, ranks_, host_of_rank);
}

Result<std::vector<double>> RankTeam::sum(std::vector<double> mine) {
  cells_ = std::move(mine);
  const Buffer buffer{cells_.data(), cells_.size() * sizeof(double), DType::kFp64, false};
  AGPCS_RETURN_IF_ERROR(all_reduce(buffer, AllReduce::kRing));
  return cells_;
}

Status RankTeam::all_reduce(const Buffer& buffer, AllReduce algorithm) {
  AGPCS_TRY(const Ticket ticket, transport_.all_reduce(buffer, group_, algorithm));
  return transport_.wait(Stream::kCollective, ticket, limit_);
}

}  // namespace agpcs
