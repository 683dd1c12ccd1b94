// SPDX-License-Identifier: Apache-2.0
#include "runtime/all_reduce.h"

#include "runtime/sum.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kSegmentBytes = std::size_t{1} << 20;
// Segments that a receiver asks for ahead of the one it adds: a sender starts a segment when it
// hears that it is wanted, and on a busy link that word waits behind megabytes of data.
constexpr std::size_t kAhead = 8;
constexpr std::uint64_t kCollectiveSlot = std::uint64_t{1} << 63;

enum Phase : std::uint64_t { kReduceScatter, kAllGather, kToLeader, kFromLeader };

// Far enough away to mean "until the wire fails".
Deadline no_deadline() { return std::chrono::steady_clock::now() + std::chrono::hours(24 * 365); }

}  // namespace

Reducer::Reducer(Wire& wire, int rank) : wire_(wire), rank_(rank) {}

Status Reducer::all_reduce(const RankGroup& group, AllReduce algorithm, const Buffer& buffer) {
  if (group.ranks.size() == 1 || buffer.bytes == 0) return {};
  const std::uint64_t slot = kCollectiveSlot | (static_cast<std::uint64_t>(group.id) << 8);
  Status status = algorithm == AllReduce::kHierarchical ? hierarchical(group, buffer, slot)
                                                        : ring(group.ranks, buffer, slot);
  sent_.clear();
  return status;
}

// The buffer is cut into as many chunks as there are members. In n - 1 steps each member passes on
// the chunk that it has just added to, then in n - 1 steps the chunk that it has just completed.
Status Reducer::ring(const std::vector<int>& ranks, const Buffer& buffer, std::uint64_t slot) {
  const std::size_t n = ranks.size();
  if (n == 1) return {};
  const auto me =
      static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  const int next = ranks[(me + 1) % n];
  const int previous = ranks[(me + n - 1) % n];
  const std::size_t width = size_of(buffer.type);
  const std::size_t elements = buffer.bytes / width;
  const auto chunk = [&](std::size_t index) {
    const std::size_t i = index % n;
    const std::size_t begin = elements / n * i + std::min(i, elements % n);
    const std::size_t count = elements / n + (i < elements % n ? 1 : 0);
    return Span{static_cast<char*>(buffer.data) + begin * width, count * width};
  };
  for (std::size_t step = 0; step + 1 < n; ++step) {
    AGPCS_RETURN_IF_ERROR(post_sends(chunk(me + n - step), next, slot | kReduceScatter));
    AGPCS_RETURN_IF_ERROR(
        recv_and_add(chunk(me + 2 * n - step - 1), buffer.type, previous, slot | kReduceScatter));
  }
  AGPCS_RETURN_IF_ERROR(finish_sends());  // what was sent is received into from here on
  for (std::size_t step = 0; step + 1 < n; ++step) {
    AGPCS_RETURN_IF_ERROR(post_sends(chunk(me + n + 1 - step), next, slot | kAllGather));
    AGPCS_RETURN_IF_ERROR(recv_into(chunk(me + n - step), previous, slot | kAllGather));
  }
  return finish_sends();
}

Status Reducer::hierarchical(const RankGroup& group, const Buffer& buffer, std::uint64_t slot) {
  const auto my_index = static_cast<std::size_t>(
      std::find(group.ranks.begin(), group.ranks.end(), rank_) - group.ranks.begin());
  std::vector<int> local, leaders, seen;
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    const int host = group.hosts[i];
    if (host == group.hosts[my_index]) local.push_back(group.ranks[i]);
    if (std::find(seen.begin(), seen.end(), host) == seen.end()) {
      seen.push_back(host);
      leaders.push_back(group.ranks[i]);
    }
  }
  AGPCS_RETURN_IF_ERROR(gather_on_leader(local, buffer, slot | kToLeader));
  if (local.front() == rank_) AGPCS_RETURN_IF_ERROR(ring(leaders, buffer, slot));
  return scatter_from_leader(local, buffer, slot | kFromLeader);
}

Status Reducer::gather_on_leader(const std::vector<int>& local, const Buffer& buffer,
                                 std::uint64_t slot) {
  const Span all{static_cast<char*>(buffer.data), buffer.bytes};
  if (local.front() != rank_) {
    AGPCS_RETURN_IF_ERROR(post_sends(all, local.front(), slot));
    return finish_sends();
  }
  for (std::size_t i = 1; i < local.size(); ++i) {
    AGPCS_RETURN_IF_ERROR(recv_and_add(all, buffer.type, local[i], slot));
  }
  return {};
}

Status Reducer::scatter_from_leader(const std::vector<int>& local, const Buffer& buffer,
                                    std::uint64_t slot) {
  const Span all{static_cast<char*>(buffer.data), buffer.bytes};
  if (local.front() != rank_) return recv_into(all, local.front(), slot);
  for (std::size_t i = 1; i < local.size(); ++i) {
    AGPCS_RETURN_IF_ERROR(post_sends(all, local[i], slot));
  }
  return finish_sends();
}

Status Reducer::post_sends(Span span, int peer, std::uint64_t slot) {
  for (std::size_t at = 0; at < span.bytes; at += kSegmentBytes) {
    const std::size_t bytes = std::min(kSegmentBytes, span.bytes - at);
    AGPCS_TRY(auto message, wire_.send(span.data + at, bytes, peer, slot));
    sent_.push_back({std::move(message), peer});
  }
  return {};
}

Status Reducer::finish_sends() {
  for (const Sent& sent : sent_) AGPCS_RETURN_IF_ERROR(wait(*sent.message, sent.peer));
  sent_.clear();
  return {};
}

Status Reducer::recv_into(Span span, int peer, std::uint64_t slot) {
  std::vector<std::unique_ptr<WireMessage>> arriving;
  for (std::size_t at = 0; at < span.bytes; at += kSegmentBytes) {
    const std::size_t bytes = std::min(kSegmentBytes, span.bytes - at);
    AGPCS_TRY(arriving.emplace_back(), wire_.recv(span.data + at, bytes, peer, slot));
  }
  for (const auto& message : arriving) AGPCS_RETURN_IF_ERROR(wait(*message, peer));
  return {};
}

Status Reducer::recv_and_add(Span span, DType type, int peer, std::uint64_t slot) {
  const std::size_t segments = (span.bytes + kSegmentBytes - 1) / kSegmentBytes;
  scratch_.resize(std::max(scratch_.size(), std::min(span.bytes, kAhead * kSegmentBytes)));
  const auto of_segment = [&](std::size_t i) {
    return Span{scratch_.data() + i % kAhead * kSegmentBytes,
                std::min(kSegmentBytes, span.bytes - i * kSegmentBytes)};
  };
  std::array<std::unique_ptr<WireMessage>, kAhead> arriving;
  const auto post = [&](std::size_t i) -> Status {
    if (i >= segments) return {};
    const Span to = of_segment(i);
    AGPCS_TRY(arriving[i % kAhead], wire_.recv(to.data, to.bytes, peer, slot));
    return {};
  };
  for (std::size_t i = 0; i < kAhead; ++i) AGPCS_RETURN_IF_ERROR(post(i));
  for (std::size_t i = 0; i < segments; ++i) {
    AGPCS_RETURN_IF_ERROR(wait(*arriving[i % kAhead], peer));
    const Span from = of_segment(i);
    add_into(span.data + i * kSegmentBytes, from.data, from.bytes / size_of(type), type);
    AGPCS_RETURN_IF_ERROR(post(i + kAhead));
  }
  return {};
}

Status Reducer::wait(WireMessage& message, int peer) {
  waiting_for_.store(peer, std::memory_order_relaxed);
  Status status = message.wait(no_deadline());
  waiting_for_.store(-1, std::memory_order_relaxed);
  return status;
}

}  // namespace agpcs
