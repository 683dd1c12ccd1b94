// SPDX-License-Identifier: Apache-2.0
// AloneTransport: lets one member of a team compute by itself, to be timed.
#pragma once

#include <agpcs/transport.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Rank 0 of `size`. Each collective is done at once: the other ranks have zeros. So what the rank
/// computes is wrong, and takes as long as it does beside the others. There are no messages.
class AloneTransport final : public Transport {
 public:
  explicit AloneTransport(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  Status open_group(int group, const std::vector<int>& ranks,
                    const std::vector<int>& host_of_rank) override;
  Status open_flow(int flow, int group, const PlanFlow& schedule) override;
  Result<Ticket> send(const Buffer& buffer, int peer, std::uint64_t tag) override;
  Result<Ticket> recv(const Buffer& buffer, int peer, std::uint64_t tag) override;
  Result<Ticket> all_reduce(const Buffer& buffer, int group, AllReduce algorithm) override;
  Result<Ticket> all_reduce_flow(const Buffer& buffer, int flow) override;
  Result<Ticket> reduce_scatter(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                                int group, AllReduce algorithm) override;
  Result<Ticket> all_gather(const Buffer& buffer, const std::vector<std::int64_t>& parts, int group,
                            AllReduce algorithm) override;
  Result<Ticket> all_to_all(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                            int group) override;
  Status wait(Stream stream, Ticket ticket, std::chrono::milliseconds limit) override;
  OperationTime time_of(Stream stream, Ticket ticket) const override;
  void abort(const Status& reason) override;

 private:
  const int size_;
  Ticket collectives_ = 0;
};

}  // namespace agpcs
