// SPDX-License-Identifier: Apache-2.0
// WireTransport: a transport over a wire. Messages are posted at once. One thread for each stream
// waits for messages or runs collectives.
#pragma once

#include "runtime/transport/collective_queue.h"
#include "runtime/transport/message_line.h"
#include "runtime/transport/wire.h"

#include <agpcs/transport.h>

#include <functional>
#include <memory>
#include <vector>

namespace agpcs {

class WireTransport final : public Transport {
 public:
  /// The destructor calls `detach` first; from then on nobody may call `abort`.
  WireTransport(std::unique_ptr<Wire> wire, int rank, int size, std::function<void()> detach = {});
  ~WireTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status open_group(int group, const std::vector<int>& ranks,
                    const std::vector<int>& host_of_rank) override;
  Status open_flow(int flow, int group, const PlanFlow& schedule) override;
  Result<Ticket> send(const Buffer& buffer, int peer, std::uint64_t tag) override;
  Result<Ticket> recv(const Buffer& buffer, int peer, std::uint64_t tag) override;
  Result<Ticket> all_reduce(const Buffer& buffer, int group, AllReduce algorithm) override;
  Result<Ticket> all_reduce_areas(const std::vector<Buffer>& areas, int group,
                                  AllReduce algorithm) override;
  bool joins_areas() const override { return true; }
  Result<Ticket> reduce_scatter(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                                int group, AllReduce algorithm) override;
  Result<Ticket> all_gather(const Buffer& buffer, const std::vector<std::int64_t>& parts, int group,
                            AllReduce algorithm) override;
  Result<Ticket> all_to_all(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                            int group) override;
  Result<Ticket> all_reduce_flow(const Buffer& buffer, int flow) override;
  Status wait(Stream stream, Ticket ticket, std::chrono::milliseconds limit) override;
  OperationTime time_of(Stream stream, Ticket ticket) const override;
  void abort(const Status& reason) override;
  /// Does what `abort` does, without telling the other ranks: another rank failed, and all know it
  /// already.
  void abort_quietly(const Status& reason);

 private:
  static Status check_on_cpu(Collective kind, const Buffer& buffer);
  Result<Ticket> enqueue(const WireCollective& call, int group);
  Status check(const Buffer& buffer, int peer, std::uint64_t tag) const;

  std::unique_ptr<Wire> wire_;
  int rank_, size_;
  std::function<void()> detach_;
  // Last: their threads use the wire.
  MessageLine sends_{"send to"}, recvs_{"recv from"};
  CollectiveQueue collectives_;
};

}  // namespace agpcs
