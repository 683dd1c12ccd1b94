// SPDX-License-Identifier: Apache-2.0
// WireTransport: a transport over a wire. Messages are posted at once and waited for in order;
// collectives have a thread.
#pragma once

#include "runtime/collective_queue.h"
#include "runtime/wire.h"

#include <agpcs/transport.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace agpcs {

class WireTransport final : public Transport {
 public:
  /// `detach` is called first of all on destruction: from then on nobody may call `abort`.
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
  Result<Ticket> all_reduce_flow(const Buffer& buffer, int flow) override;
  Status wait(Stream stream, Ticket ticket, std::chrono::milliseconds limit) override;
  void abort(const Status& reason) override;
  /// As `abort`, but tells nobody: another rank failed, and all are told already.
  void abort_quietly(const Status& reason);

 private:
  struct Posted {
    std::unique_ptr<WireMessage> message;
    int peer = 0;
    std::size_t bytes = 0;
  };
  // The messages of one direction, waited for in order.
  struct Line {
    std::deque<Posted> posted;
    Ticket enqueued = 0, done = 0;
    Status failure;
  };

  static Status check_on_cpu(const Buffer& buffer);
  Status check(const Buffer& buffer, int peer, std::uint64_t tag) const;
  static Ticket push(Line& line, std::unique_ptr<WireMessage> message, int peer, std::size_t bytes);
  Status wait(Line& line, const char* direction, Ticket ticket,
              std::chrono::milliseconds limit) const;

  std::unique_ptr<Wire> wire_;
  int rank_, size_;
  std::function<void()> detach_;
  Line sends_, recvs_;
  std::atomic<bool> aborted_{false};
  CollectiveQueue collectives_;  // last: its thread uses the wire
};

}  // namespace agpcs
