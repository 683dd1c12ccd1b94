// SPDX-License-Identifier: Apache-2.0
// A transport that takes its time: what it carries arrives later by latency + bytes / rate.
#pragma once

#include <agpcs/transport.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

namespace agpcs {

/// Seconds by which messages and all-reduces are late; the receiver waits them out.
struct Delays {
  std::function<double(int from, int to, std::size_t bytes)> message;
  std::function<double(std::size_t bytes)> all_reduce;
};

class SlowTransport final : public Transport {
 public:
  SlowTransport(Transport& inner, Delays delays) : inner_(inner), delays_(std::move(delays)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Status open_group(int group, const std::vector<int>& ranks,
                    const std::vector<int>& host_of_rank) override {
    return inner_.open_group(group, ranks, host_of_rank);
  }
  Status open_flow(int flow, int group, const PlanFlow& schedule) override {
    return inner_.open_flow(flow, group, schedule);
  }
  Result<Ticket> send(const Buffer& buffer, int peer, std::uint64_t tag) override {
    return inner_.send(buffer, peer, tag);
  }
  Result<Ticket> recv(const Buffer& buffer, int peer, std::uint64_t tag) override {
    auto ticket = inner_.recv(buffer, peer, tag);
    if (ticket.ok() && delays_.message) {
      late_messages_[*ticket] = delays_.message(peer, rank(), buffer.bytes);
    }
    return ticket;
  }
  Result<Ticket> all_reduce(const Buffer& buffer, int group, AllReduce algorithm) override {
    return late(inner_.all_reduce(buffer, group, algorithm), buffer.bytes);
  }
  Result<Ticket> reduce_scatter(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                                int group, AllReduce algorithm) override {
    return late(inner_.reduce_scatter(buffer, parts, group, algorithm), buffer.bytes);
  }
  Result<Ticket> all_gather(const Buffer& buffer, const std::vector<std::int64_t>& parts, int group,
                            AllReduce algorithm) override {
    return late(inner_.all_gather(buffer, parts, group, algorithm), buffer.bytes);
  }
  Result<Ticket> all_to_all(const Buffer& buffer, const std::vector<std::int64_t>& parts,
                            int group) override {
    return late(inner_.all_to_all(buffer, parts, group), buffer.bytes);
  }
  Result<Ticket> all_reduce_flow(const Buffer& buffer, int flow) override {
    return late(inner_.all_reduce_flow(buffer, flow), buffer.bytes);
  }
  Status wait(Stream stream, Ticket ticket, std::chrono::milliseconds limit) override {
    Status status = inner_.wait(stream, ticket, limit);
    if (stream == Stream::kRecv) be_late(late_messages_, ticket);
    if (stream == Stream::kCollective) be_late(late_all_reduces_, ticket);
    return status;
  }
  OperationTime time_of(Stream stream, Ticket ticket) const override {
    return inner_.time_of(stream, ticket);
  }
  void abort(const Status& reason) override { inner_.abort(reason); }

 private:
  using Late = std::map<Ticket, double>;
  Result<Ticket> late(Result<Ticket> ticket, std::size_t bytes) {
    if (ticket.ok() && delays_.all_reduce) late_all_reduces_[*ticket] = delays_.all_reduce(bytes);
    return ticket;
  }
  // Of one stream, hence from one thread at a time.
  static void be_late(Late& late, Ticket ticket) {
    double seconds = 0;
    while (!late.empty() && late.begin()->first <= ticket) {
      seconds += late.begin()->second;
      late.erase(late.begin());
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  Transport& inner_;
  const Delays delays_;
  Late late_messages_, late_all_reduces_;
};

}  // namespace agpcs
