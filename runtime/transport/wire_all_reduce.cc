// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/wire_all_reduce.h"

#include "ir/base/check.h"
#include "ir/plan/reduction_tree.h"
#include "runtime/support/sum.h"

#include <algorithm>
#include <array>
#include <utility>

namespace agpcs {
namespace {

// A segment costs a wake-up of each of two threads, so long chunks have longer segments.
constexpr std::size_t kSegmentBytes = std::size_t{1} << 20;
constexpr std::size_t kLongestSegmentBytes = 2 * kSegmentBytes;
// A receiver asks for this many segments ahead of the one that it adds: a sender starts a segment
// when it learns that it is wanted, and on a busy link this request waits behind megabytes of data.
constexpr std::size_t kAhead = 8;
using Arriving = std::array<std::unique_ptr<WireMessage>, kAhead>;
constexpr std::uint64_t kCollectiveSlot = std::uint64_t{1} << 63;

enum Phase : std::uint64_t { kRing, kToLeader, kFromLeader, kTree, kFlow };

std::uint64_t slot_of(int group) {
  return kCollectiveSlot | (static_cast<std::uint64_t>(group) << 8);
}

/// The segments that one member of a ring sends and receives.
class RingStream {
 public:
  RingStream(const std::vector<int>& ranks, int rank, const Buffer& buffer)
      : members_(ranks.size()),
        me_(static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin())),
        width_(size_of(buffer.type)),
        elements_(buffer.bytes / width_),
        data_(static_cast<char*>(buffer.data)) {
    const std::size_t longest = (elements_ + members_ - 1) / members_ * width_;
    const std::size_t half = (longest / 2 + width_ - 1) / width_ * width_;
    segment_bytes_ = std::clamp(half, kSegmentBytes, kLongestSegmentBytes);
    per_chunk_ = std::max<std::size_t>(1, (longest + segment_bytes_ - 1) / segment_bytes_);
  }

  std::size_t segment_bytes() const { return segment_bytes_; }
  /// Returns how many segments are asked for ahead of the one that is added: the same number of
  /// bytes for every segment length.
  std::size_t ahead() const { return kAhead * kSegmentBytes / segment_bytes_; }
  std::size_t per_chunk() const { return per_chunk_; }
  std::size_t count() const { return 2 * (members_ - 1) * per_chunk_; }
  /// Returns whether received segment `i` is added to its place; otherwise it is received there.
  bool adds(std::size_t i) const { return i / per_chunk_ < members_ - 1; }
  Span sent(std::size_t i) const { return place(i, 0); }
  Span received(std::size_t i) const { return place(i, 1); }

 private:
  // In each step of both halves, a member sends the chunk before the one that it sent last, and
  // receives the chunk before that.
  Span place(std::size_t i, std::size_t behind) const {
    const std::size_t step = i / per_chunk_;
    const std::size_t chunk = (me_ + 2 * members_ - step - behind) % members_;
    const std::size_t begin = elements_ / members_ * chunk + std::min(chunk, elements_ % members_);
    const std::size_t end = begin + elements_ / members_ + (chunk < elements_ % members_ ? 1 : 0);
    const std::size_t at = std::min(begin * width_ + i % per_chunk_ * segment_bytes_, end * width_);
    return {data_ + at, std::min(segment_bytes_, end * width_ - at)};
  }

  std::size_t members_, me_, width_, elements_, segment_bytes_ = 0, per_chunk_ = 1;
  char* data_;
};

/// A buffer in pieces that go up and down the tree, and a rank's neighbours there.
struct TreePieces {
  TreePieces(const RankGroup& group, int rank, const Buffer& buffer) : all(buffer) {
    const ReductionTree tree = reduction_tree(group.hosts);
    const auto me = std::find(group.ranks.begin(), group.ranks.end(), rank) - group.ranks.begin();
    const ReductionTree::Member& member = tree.members[static_cast<std::size_t>(me)];
    const auto rank_of = [&](int m) { return group.ranks[static_cast<std::size_t>(m)]; };
    if (member.parent >= 0) parent = rank_of(member.parent);
    for (const int child : member.children) {
      if (child >= 0) children.push_back(rank_of(child));
    }
    const auto bytes = static_cast<std::int64_t>(buffer.bytes);
    length = static_cast<std::size_t>(tree_piece_bytes(bytes));
    count = static_cast<std::size_t>(tree_pieces(bytes));
    behind = 2 * static_cast<std::size_t>(member.depth) + (children.empty() ? kAhead : kSlack);
  }

  Span piece(std::size_t i) const {
    return {static_cast<char*>(all.data) + i * length, std::min(length, all.bytes - i * length)};
  }

  // Pieces beyond the least number between both ways, so that a late piece does not delay others.
  static constexpr std::size_t kSlack = 2;

  Buffer all;
  int parent = -1;            ///< -1: this rank is the root
  std::vector<int> children;  ///< at most two
  std::size_t length = 0, count = 0;
  std::size_t behind = 0;  ///< piece i is awaited from above after piece i + `behind` went up
};

}  // namespace

std::uint64_t flow_slot(int group) { return slot_of(group) | kFlow; }

WireAllReduce::WireAllReduce(Wire& wire, int rank) : wire_(wire), rank_(rank) {}

Status WireAllReduce::all_reduce(const RankGroup& group, AllReduce algorithm,
                                 const Buffer& buffer) {
  if (group.ranks.size() == 1 || buffer.bytes == 0) return {};
  const std::uint64_t slot = slot_of(group.id);
  const auto reduce = [&]() -> Status {
    switch (algorithm) {
      case AllReduce::kRing:
        return ring(group.ranks, buffer, slot | kRing);
      case AllReduce::kHierarchical:
        return hierarchical(group, buffer, slot);
      case AllReduce::kTree:
        return tree(group, buffer, slot | kTree);
      case AllReduce::kFlow:
        break;  // ScheduleAllReduce does this
    }
    AGPCS_CHECK(false, "all-reduce algorithm {}", static_cast<int>(algorithm));
  };
  Status status = reduce();
  sent_.clear();
  return status;
}

// The buffer is cut into as many chunks as there are members, and chunks into segments. In n - 1
// steps each member passes on the chunk that it has just added to; in n - 1 more steps, the chunk
// that it has just completed. A segment goes on as soon as it is there, so all steps are one stream
// of segments, numbered in the order in which they travel.
//
// A sender starts a segment when it learns that it is wanted. This request waits behind everything
// that its sender has posted, so a member posts receives first, and at most `ahead` segments of
// either kind.
//
// A segment of the second half is received in its place although nobody has waited for an earlier
// send from there: it only comes after all members, including the receiver of that send, have added
// to it.
Status WireAllReduce::ring(const std::vector<int>& ranks, const Buffer& buffer,
                           std::uint64_t slot) {
  const std::size_t n = ranks.size();
  if (n == 1) return {};
  const auto me =
      static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  const int next = ranks[(me + 1) % n];
  const int previous = ranks[(me + n - 1) % n];
  const RingStream stream(ranks, rank_, buffer);
  const std::size_t ahead = stream.ahead();
  Arriving arriving;
  const std::size_t stride = std::min(stream.segment_bytes(), buffer.bytes);
  scratch_.resize(std::max(scratch_.size(), ahead * stride));
  std::size_t sent = 0, done = 0;
  const auto scratch = [&](std::size_t i) {
    return Span{scratch_.data() + i % ahead * stride, stream.received(i).bytes};
  };
  const auto post_recv = [&](std::size_t i) -> Status {
    if (i >= stream.count()) return {};
    const Span to = stream.adds(i) ? scratch(i) : stream.received(i);
    if (to.bytes == 0) return {};
    AGPCS_TRY(arriving[i % ahead], wire_.recv(to.data, to.bytes, previous, slot));
    return {};
  };
  const auto post_sends_that_can = [&]() -> Status {
    for (; sent < std::min(stream.count(), done + std::min(ahead, stream.per_chunk())); ++sent) {
      AGPCS_RETURN_IF_ERROR(post_send(stream.sent(sent), next, slot));
    }
    return {};
  };
  for (std::size_t i = 0; i < ahead; ++i) AGPCS_RETURN_IF_ERROR(post_recv(i));
  AGPCS_RETURN_IF_ERROR(post_sends_that_can());
  while (done < stream.count()) {
    const Span to = stream.received(done);
    if (to.bytes > 0) AGPCS_RETURN_IF_ERROR(awaited_.wait(*arriving[done % ahead], previous));
    if (stream.adds(done)) {
      add_into(to.data, scratch(done).data, to.bytes / size_of(buffer.type), buffer.type);
    }
    ++done;
    AGPCS_RETURN_IF_ERROR(post_recv(done + ahead - 1));
    AGPCS_RETURN_IF_ERROR(post_sends_that_can());
  }
  return finish_sends();
}

Status WireAllReduce::hierarchical(const RankGroup& group, const Buffer& buffer,
                                   std::uint64_t slot) {
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
  if (local.front() == rank_) AGPCS_RETURN_IF_ERROR(ring(leaders, buffer, slot | kRing));
  return scatter_from_leader(local, buffer, slot | kFromLeader);
}

// When pieces flow steadily, a rank at depth d gets piece i from above when piece i + 2 d comes
// from below, so it waits for them in about that order. There is no deadlock: piece i comes down
// when the parent has piece i + `behind` from below. For that, no rank below needs more than piece
// i - 1 from above, because `behind` grows with depth.
//
// A piece from above is received in its place although nobody has waited for its send up: it only
// comes after all members, including the receiver of that send, have added to it.
Status WireAllReduce::tree(const RankGroup& group, const Buffer& buffer, std::uint64_t slot) {
  const TreePieces pieces(group, rank_, buffer);
  const std::size_t stride = std::min(pieces.length, buffer.bytes);
  scratch_.resize(std::max(scratch_.size(), pieces.children.size() * kAhead * stride));
  std::array<Arriving, 2> from_child;
  Arriving from_above;
  const auto scratch = [&](std::size_t child, std::size_t i) {
    return Span{scratch_.data() + (child * kAhead + i % kAhead) * stride, pieces.piece(i).bytes};
  };
  const auto ask = [&](Arriving& arriving, std::size_t i, Span to, int peer) -> Status {
    AGPCS_TRY(arriving[i % kAhead], wire_.recv(to.data, to.bytes, peer, slot));
    return {};
  };
  const auto ask_below = [&](std::size_t i) -> Status {
    for (std::size_t c = 0; c < pieces.children.size() && i < pieces.count; ++c) {
      AGPCS_RETURN_IF_ERROR(ask(from_child[c], i, scratch(c, i), pieces.children[c]));
    }
    return {};
  };
  const auto ask_above = [&](std::size_t i) -> Status {
    if (pieces.parent < 0 || i >= pieces.count) return {};
    return ask(from_above, i, pieces.piece(i), pieces.parent);
  };
  const auto send_down = [&](std::size_t i) -> Status {
    for (const int child : pieces.children) {
      AGPCS_RETURN_IF_ERROR(post_sends(pieces.piece(i), child, slot));
    }
    return {};
  };
  const auto up = [&](std::size_t i) -> Status {
    const Span to = pieces.piece(i);
    for (std::size_t c = 0; c < pieces.children.size(); ++c) {
      AGPCS_RETURN_IF_ERROR(awaited_.wait(*from_child[c][i % kAhead], pieces.children[c]));
      add_into(to.data, scratch(c, i).data, to.bytes / size_of(buffer.type), buffer.type);
    }
    AGPCS_RETURN_IF_ERROR(ask_below(i + kAhead));
    return pieces.parent < 0 ? send_down(i) : post_sends(to, pieces.parent, slot);
  };
  const auto down = [&](std::size_t i) -> Status {
    AGPCS_RETURN_IF_ERROR(awaited_.wait(*from_above[i % kAhead], pieces.parent));
    AGPCS_RETURN_IF_ERROR(ask_above(i + kAhead));
    return send_down(i);
  };
  for (std::size_t i = 0; i < kAhead; ++i) {
    AGPCS_RETURN_IF_ERROR(ask_below(i));
    AGPCS_RETURN_IF_ERROR(ask_above(i));
  }
  const std::size_t rounds = pieces.count + (pieces.parent < 0 ? 0 : pieces.behind);
  for (std::size_t i = 0; i < rounds; ++i) {
    if (i < pieces.count) AGPCS_RETURN_IF_ERROR(up(i));
    if (pieces.parent >= 0 && i >= pieces.behind) AGPCS_RETURN_IF_ERROR(down(i - pieces.behind));
  }
  return finish_sends();
}

Status WireAllReduce::gather_on_leader(const std::vector<int>& local, const Buffer& buffer,
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

Status WireAllReduce::scatter_from_leader(const std::vector<int>& local, const Buffer& buffer,
                                          std::uint64_t slot) {
  const Span all{static_cast<char*>(buffer.data), buffer.bytes};
  if (local.front() != rank_) return recv_into(all, local.front(), slot);
  for (std::size_t i = 1; i < local.size(); ++i) {
    AGPCS_RETURN_IF_ERROR(post_sends(all, local[i], slot));
  }
  return finish_sends();
}

Status WireAllReduce::post_sends(Span span, int peer, std::uint64_t slot) {
  for (std::size_t at = 0; at < span.bytes; at += kSegmentBytes) {
    const std::size_t bytes = std::min(kSegmentBytes, span.bytes - at);
    AGPCS_RETURN_IF_ERROR(post_send({span.data + at, bytes}, peer, slot));
  }
  return {};
}

Status WireAllReduce::post_send(Span span, int peer, std::uint64_t slot) {
  if (span.bytes == 0) return {};
  AGPCS_TRY(auto message, wire_.send(span.data, span.bytes, peer, slot));
  sent_.push_back({std::move(message), peer});
  return {};
}

Status WireAllReduce::finish_sends() {
  for (const Sent& sent : sent_) AGPCS_RETURN_IF_ERROR(awaited_.wait(*sent.message, sent.peer));
  sent_.clear();
  return {};
}

Status WireAllReduce::recv_into(Span span, int peer, std::uint64_t slot) {
  std::vector<std::unique_ptr<WireMessage>> arriving;
  for (std::size_t at = 0; at < span.bytes; at += kSegmentBytes) {
    const std::size_t bytes = std::min(kSegmentBytes, span.bytes - at);
    AGPCS_TRY(arriving.emplace_back(), wire_.recv(span.data + at, bytes, peer, slot));
  }
  for (const auto& message : arriving) AGPCS_RETURN_IF_ERROR(awaited_.wait(*message, peer));
  return {};
}

Status WireAllReduce::recv_and_add(Span span, DType type, int peer, std::uint64_t slot) {
  const std::size_t segments = (span.bytes + kSegmentBytes - 1) / kSegmentBytes;
  scratch_.resize(std::max(scratch_.size(), std::min(span.bytes, kAhead * kSegmentBytes)));
  const auto of_segment = [&](std::size_t i) {
    return Span{scratch_.data() + i % kAhead * kSegmentBytes,
                std::min(kSegmentBytes, span.bytes - i * kSegmentBytes)};
  };
  Arriving arriving;
  const auto post = [&](std::size_t i) -> Status {
    if (i >= segments) return {};
    const Span to = of_segment(i);
    AGPCS_TRY(arriving[i % kAhead], wire_.recv(to.data, to.bytes, peer, slot));
    return {};
  };
  for (std::size_t i = 0; i < kAhead; ++i) AGPCS_RETURN_IF_ERROR(post(i));
  for (std::size_t i = 0; i < segments; ++i) {
    AGPCS_RETURN_IF_ERROR(awaited_.wait(*arriving[i % kAhead], peer));
    const Span from = of_segment(i);
    add_into(span.data + i * kSegmentBytes, from.data, from.bytes / size_of(type), type);
    AGPCS_RETURN_IF_ERROR(post(i + kAhead));
  }
  return {};
}

}  // namespace agpcs
