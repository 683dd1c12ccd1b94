// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/wire_transport.h"

#include "runtime/support/rank_group.h"

#include <fmt/format.h>

#include <utility>

namespace agpcs {

WireTransport::WireTransport(std::unique_ptr<Wire> wire, int rank, int size,
                             std::function<void()> detach)
    : wire_(std::move(wire)),
      rank_(rank),
      size_(size),
      detach_(std::move(detach)),
      collectives_(*wire_, rank) {}

WireTransport::~WireTransport() {
  if (detach_) detach_();
  abort_quietly({StatusCode::kCancelled, fmt::format("rank {} closed its transport", rank_)});
}

Status WireTransport::open_group(int group, const std::vector<int>& ranks,
                                 const std::vector<int>& host_of_rank) {
  AGPCS_TRY(RankGroup opened, make_rank_group(group, ranks, host_of_rank, rank_, size_));
  return collectives_.open(std::move(opened));
}

Status WireTransport::open_flow(int flow, int group, const PlanFlow& schedule) {
  return collectives_.open_flow(flow, group, schedule);
}

Result<Ticket> WireTransport::send(const Buffer& buffer, int peer, std::uint64_t tag) {
  AGPCS_RETURN_IF_ERROR(check(buffer, peer, tag));
  AGPCS_TRY(auto message, wire_->send(buffer.data, buffer.bytes, peer, tag));
  return sends_.push(std::move(message), peer, buffer.bytes);
}

Result<Ticket> WireTransport::recv(const Buffer& buffer, int peer, std::uint64_t tag) {
  AGPCS_RETURN_IF_ERROR(check(buffer, peer, tag));
  AGPCS_TRY(auto message, wire_->recv(buffer.data, buffer.bytes, peer, tag));
  return recvs_.push(std::move(message), peer, buffer.bytes);
}

Result<Ticket> WireTransport::all_reduce(const Buffer& buffer, int group, AllReduce algorithm) {
  return enqueue({Collective::kAllReduce, algorithm, buffer, nullptr, nullptr}, group);
}

Result<Ticket> WireTransport::all_reduce_areas(const std::vector<Buffer>& areas, int group,
                                               AllReduce algorithm) {
  if (algorithm != AllReduce::kRing || areas.size() < 2) {
    return Transport::all_reduce_areas(areas, group, algorithm);
  }
  Buffer all{nullptr, 0, areas.front().type, false};
  for (const Buffer& area : areas) {
    if (area.type != all.type || area.bytes % size_of(all.type) != 0) {
      return invalid_input(fmt::format("all_reduce: {} bytes of {} beside {} values", area.bytes,
                                       name_of(area.type), name_of(all.type)));
    }
    all.bytes += area.bytes;
    all.on_gpu = all.on_gpu || area.on_gpu;
  }
  return enqueue({Collective::kAllReduce, algorithm, all, nullptr, &areas}, group);
}

Result<Ticket> WireTransport::reduce_scatter(const Buffer& buffer,
                                             const std::vector<std::int64_t>& parts, int group,
                                             AllReduce algorithm) {
  return enqueue({Collective::kReduceScatter, algorithm, buffer, &parts, nullptr}, group);
}

Result<Ticket> WireTransport::all_gather(const Buffer& buffer,
                                         const std::vector<std::int64_t>& parts, int group,
                                         AllReduce algorithm) {
  return enqueue({Collective::kAllGather, algorithm, buffer, &parts, nullptr}, group);
}

Result<Ticket> WireTransport::all_to_all(const Buffer& buffer,
                                         const std::vector<std::int64_t>& parts, int group) {
  return enqueue({Collective::kAllToAll, AllReduce::kRing, buffer, &parts, nullptr}, group);
}

Result<Ticket> WireTransport::enqueue(const WireCollective& call, int group) {
  AGPCS_RETURN_IF_ERROR(check_on_cpu(call.kind, call.buffer));
  return collectives_.enqueue(call, group);
}

Result<Ticket> WireTransport::all_reduce_flow(const Buffer& buffer, int flow) {
  AGPCS_RETURN_IF_ERROR(check_on_cpu(Collective::kAllReduce, buffer));
  return collectives_.enqueue_flow(buffer, flow);
}

Status WireTransport::check_on_cpu(Collective kind, const Buffer& buffer) {
  if (!buffer.on_gpu) return {};
  return invalid_input(
      fmt::format("{}: the buffer is on a GPU, the transport is not", name_of(kind)));
}

Status WireTransport::wait(Stream stream, Ticket ticket, std::chrono::milliseconds limit) {
  switch (stream) {
    case Stream::kSend:
      return sends_.wait(ticket, limit);
    case Stream::kRecv:
      return recvs_.wait(ticket, limit);
    case Stream::kCollective:
      return collectives_.wait(ticket, limit);
  }
  return internal_error("wait for an unknown stream");
}

OperationTime WireTransport::time_of(Stream stream, Ticket ticket) const {
  switch (stream) {
    case Stream::kSend:
      return sends_.time_of(ticket);
    case Stream::kRecv:
      return recvs_.time_of(ticket);
    case Stream::kCollective:
      return collectives_.time_of(ticket);
  }
  return {};
}

void WireTransport::abort(const Status& reason) {
  abort_quietly(reason);  // first, so that this rank reports `reason` and not its echo
  wire_->announce(reason);
}

void WireTransport::abort_quietly(const Status& reason) {
  sends_.fail(reason);
  recvs_.fail(reason);
  collectives_.fail(reason);
  wire_->cancel(reason);
}

Status WireTransport::check(const Buffer& buffer, int peer, std::uint64_t tag) const {
  AGPCS_RETURN_IF_ERROR(check_message(rank_, size_, peer, tag));
  if (buffer.on_gpu) {
    return invalid_input(
        fmt::format("message for rank {}: the buffer is on a GPU, the transport is not", peer));
  }
  return {};
}

}  // namespace agpcs
