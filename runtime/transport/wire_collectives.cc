// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/wire_collectives.h"

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
constexpr std::size_t kLongestSegmentBytes = 4 * kSegmentBytes;
// A receiver asks for this many segments ahead of the one that it awaits: a sender starts a segment
// when it learns that it is wanted, and on a busy link this request waits behind megabytes of data.
constexpr std::size_t kAhead = 8, kAheadBytes = kAhead * kSegmentBytes;
using Arriving = std::array<std::unique_ptr<WireMessage>, kAhead>;
constexpr std::uint64_t kCollectiveSlot = std::uint64_t{1} << 63;

enum Phase : std::uint64_t { kRing, kToLeader, kFromLeader, kTree, kFlow, kAllToAll };

std::uint64_t slot_of(int group) {
  return kCollectiveSlot | (static_cast<std::uint64_t>(group) << 8);
}

/// A buffer in pieces that go up and down the tree.
struct TreePieces {
  TreePieces(const RankGroup::TreePlace& place, const Buffer& buffer) : all(buffer) {
    const auto bytes = static_cast<std::int64_t>(buffer.bytes);
    length = static_cast<std::size_t>(tree_piece_bytes(bytes));
    count = static_cast<std::size_t>(tree_pieces(bytes));
    behind = 2 * static_cast<std::size_t>(place.depth) + (place.children.empty() ? kAhead : kSlack);
  }

  Span piece(std::size_t i) const {
    return {static_cast<char*>(all.data) + i * length, std::min(length, all.bytes - i * length)};
  }

  // Pieces beyond the least number between both ways, so that a late piece does not delay others.
  static constexpr std::size_t kSlack = 2;

  Buffer all;
  std::size_t length = 0, count = 0;
  std::size_t behind = 0;  ///< piece i is awaited from above after piece i + `behind` went up
};

Span whole(const Buffer& buffer) { return {static_cast<char*>(buffer.data), buffer.bytes}; }

}  // namespace

std::uint64_t flow_slot(int group) { return slot_of(group) | kFlow; }

WireCollectives::WireCollectives(Wire& wire, int rank) : wire_(wire), rank_(rank) {}

Status WireCollectives::run(const RankGroup& group, const WireCollective& call) {
  if (group.ranks.size() == 1 || call.buffer.bytes == 0) return {};
  find_parts(call);
  const std::uint64_t slot = slot_of(group.id);
  const auto go = [&]() -> Status {
    if (call.kind == Collective::kAllToAll) return all_to_all(group, slot | kAllToAll);
    switch (call.algorithm) {
      case AllReduce::kRing:
        return ring(group, group.ranks, call, slot | kRing);
      case AllReduce::kHierarchical:
        return hierarchical(group, call, slot);
      case AllReduce::kTree:
        return tree(group, call, slot);
      case AllReduce::kFlow:
        break;  // ScheduleAllReduce does this
    }
    AGPCS_CHECK(false, "{} by algorithm {}", name_of(call.kind), static_cast<int>(call.algorithm));
  };
  Status status = go();
  posted_.clear();
  return status;
}

void WireCollectives::find_parts(const WireCollective& call) {
  parts_.clear();
  if (call.parts == nullptr) return;
  char* at = static_cast<char*>(call.buffer.data);
  for (const std::int64_t elements : *call.parts) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(call.buffer.type);
    parts_.push_back({at, bytes});
    at += bytes;
  }
}

void WireCollectives::find_areas(const WireCollective& call) {
  areas_.clear();
  if (call.areas == nullptr) {
    areas_.push_back({0, static_cast<char*>(call.buffer.data)});
    areas_.push_back({call.buffer.bytes, nullptr});
    return;
  }
  std::size_t begin = 0;
  const char* end = nullptr;  // of the last area
  for (const Buffer& area : *call.areas) {
    if (area.bytes == 0) continue;
    char* const data = static_cast<char*>(area.data);
    if (data != end) areas_.push_back({begin, data});  // else it goes on with the last one
    begin += area.bytes;
    end = data + area.bytes;
  }
  areas_.push_back({begin, nullptr});
}

// Chunks are equal in an all-reduce. Otherwise each of `ranks` has its part and those of the
// members up to the next one of `ranks`.
void WireCollectives::find_chunks(const RankGroup& group, const std::vector<int>& ranks,
                                  const WireCollective& call) {
  const Buffer& buffer = call.buffer;
  const std::size_t width = size_of(buffer.type), elements = buffer.bytes / width;
  chunks_.clear();
  const char* begin = static_cast<const char*>(buffer.data);
  const auto begin_of = [&](std::size_t i) -> std::size_t {
    const std::size_t n = ranks.size();
    if (call.parts == nullptr) return (elements / n * i + std::min(i, elements % n)) * width;
    return static_cast<std::size_t>(parts_[group.index_of(ranks[i])].data - begin);
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) chunks_.push_back(begin_of(i));
  chunks_.push_back(elements * width);
}

// The buffer is cut into a chunk for each member, and chunks into segments. In n - 1 steps each
// member passes on the chunk that it has just added to; in n - 1 more steps, the chunk that it has
// just completed. A reduce-scatter is the first half of this, an all-gather the second. A segment
// goes on as soon as it is there, so all steps are one stream of segments.
//
// A segment's length follows from that of an equal chunk, which has two or more of one length if it
// is long; so a chunk that is much longer than others goes round in many segments.
Status WireCollectives::ring(const RankGroup& group, const std::vector<int>& ranks,
                             const WireCollective& call, std::uint64_t slot) {
  const std::size_t n = ranks.size();
  if (n == 1) return {};
  find_chunks(group, ranks, call);
  Ring ring;
  ring.members = n;
  ring.me = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  ring.begin = sums(call.kind) ? 0 : n - 1;
  ring.end = gathers(call.kind) ? 2 * (n - 1) : n - 1;
  ring.bounds = &chunks_;
  ring.shift = call.parts == nullptr ? 0 : n - 1;  // member m completes chunk m + 1: its part
  find_areas(call);
  ring.areas = &areas_;
  const std::size_t width = size_of(call.buffer.type);
  const std::size_t equal = (call.buffer.bytes / width + n - 1) / n * width;
  const std::size_t segments =
      std::max<std::size_t>(2, (equal + kLongestSegmentBytes - 1) / kLongestSegmentBytes);
  const std::size_t even = (equal / width + segments - 1) / segments * width;
  ring.segment_bytes = std::max(even, kSegmentBytes);
  return go_round(ring, call.buffer.type, ranks[(ring.me + n - 1) % n], ranks[(ring.me + 1) % n],
                  slot);
}

// A sender starts a segment when it learns that it is wanted. This request waits behind everything
// that its sender has posted, so a member posts receives first, and at most `kAhead` segments of
// either kind, of `kAheadBytes` together, beyond those that have come.
//
// There is no deadlock where chunks are unequal. A member that may not pass on a segment before
// another one comes has sent no fewer than it has received; one that has so many under way
// has sent more; and one that has received everything may send everything, upon which the next one
// has received everything, and so on. All that is sent is received. So if all members waited for
// one another, each would have sent as much as the one before it, and none would have so many
// segments under way; but of the segments that are not sent, the first in the order of steps waits
// for nothing else.
//
// A segment of the second half is received in its place although nobody has waited for an earlier
// send from there: it only comes after all members, including the receiver of that send, have added
// to it.
Status WireCollectives::go_round(const Ring& ring, DType type, int previous, int next,
                                 std::uint64_t slot) {
  Arriving arriving;
  RingWalk sending(ring, RingWalk::Way::kSends), asking(ring, RingWalk::Way::kReceives),
      awaiting = asking;
  const auto is_near = [&](const RingWalk& walk) {
    if (walk.passed() <= awaiting.passed()) return true;
    return walk.passed() < awaiting.passed() + kAhead &&
           walk.passed_bytes() + ring.segment_bytes <= awaiting.passed_bytes() + kAheadBytes;
  };
  const auto post_recvs = [&]() -> Status {
    for (; !asking.over() && is_near(asking); asking.advance()) {
      const Pieces to = asking.segment();
      AGPCS_TRY(arriving[asking.passed() % kAhead],
                ring.adds(asking.step()) ? wire_.recv_and_add(to, type, previous, slot)
                                         : wire_.recv_pieces(to, previous, slot));
    }
    return {};
  };
  const auto may_send = [&] {
    return !sending.over() && (sending.step() == ring.begin || awaiting.has_brought(sending)) &&
           (awaiting.over() || is_near(sending));
  };
  const auto post_sends_that_can = [&]() -> Status {
    for (; may_send(); sending.advance()) {
      AGPCS_RETURN_IF_ERROR(post_send(sending.segment(), next, slot));
    }
    return {};
  };
  AGPCS_RETURN_IF_ERROR(post_recvs());
  AGPCS_RETURN_IF_ERROR(post_sends_that_can());
  while (!awaiting.over()) {
    AGPCS_RETURN_IF_ERROR(awaited_.wait(*arriving[awaiting.passed() % kAhead], previous));
    awaiting.advance();
    AGPCS_RETURN_IF_ERROR(post_recvs());
    AGPCS_RETURN_IF_ERROR(post_sends_that_can());
  }
  return finish();
}

// With parts, a ring among leaders needs the parts of a host's members side by side. Where they are
// not, all members form the ring.
Status WireCollectives::hierarchical(const RankGroup& group, const WireCollective& call,
                                     std::uint64_t slot) {
  if (call.parts != nullptr && !group.hosts_are_contiguous()) {
    return ring(group, group.ranks, call, slot | kRing);
  }
  AGPCS_RETURN_IF_ERROR(sums(call.kind) ? sum_on_first(group.local, call.buffer, slot | kToLeader)
                                        : gather_on_first(group, group.local, slot | kToLeader));
  if (group.local.front() == rank_) {
    AGPCS_RETURN_IF_ERROR(ring(group, group.leaders, call, slot | kRing));
  }
  return hand_out(group, group.local, call, slot | kFromLeader);
}

// A sender starts a segment when it learns that it is wanted, so receives come first. Nobody waits
// before all is posted.
Status WireCollectives::all_to_all(const RankGroup& group, std::uint64_t slot) {
  const std::size_t n = group.ranks.size();
  for (std::size_t step = 1; step < n; ++step) {
    const std::size_t giver = (group.me + n - step) % n;
    AGPCS_RETURN_IF_ERROR(post_recvs(parts_[n + giver], group.ranks[giver], slot));
  }
  for (std::size_t step = 1; step < n; ++step) {
    const std::size_t taker = (group.me + step) % n;
    AGPCS_RETURN_IF_ERROR(post_sends(parts_[taker], group.ranks[taker], slot));
  }
  return finish();
}

// The first member is the root.
Status WireCollectives::tree(const RankGroup& group, const WireCollective& call,
                             std::uint64_t slot) {
  if (!sums(call.kind)) {
    AGPCS_RETURN_IF_ERROR(gather_on_first(group, group.ranks, slot | kToLeader));
  }
  AGPCS_RETURN_IF_ERROR(climb(group, call, slot | kTree));
  if (gathers(call.kind)) return {};
  return hand_out(group, group.ranks, call, slot | kFromLeader);
}

// Pieces go up and are summed, if the collective sums, and down, if all members get the whole
// buffer.
//
// When pieces flow steadily, a rank at depth d gets piece i from above when piece i + 2 d comes
// from below, so it waits for them in about that order. There is no deadlock: piece i comes down
// when the parent has piece i + `behind` from below. For that, no rank below needs more than piece
// i - 1 from above, because `behind` grows with depth.
//
// A piece from above is received in its place although nobody has waited for its send up: it only
// comes after all members, including the receiver of that send, have added to it.
Status WireCollectives::climb(const RankGroup& group, const WireCollective& call,
                              std::uint64_t slot) {
  const RankGroup::TreePlace& place = group.tree;
  const TreePieces pieces(place, call.buffer);
  const bool root = place.parent < 0, up_too = sums(call.kind);
  const bool down_too = gathers(call.kind) && !root;
  const std::size_t stride = std::min(pieces.length, call.buffer.bytes);
  if (up_too) {
    scratch_.resize(std::max(scratch_.size(), place.children.size() * kAhead * stride));
  }
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
    for (std::size_t c = 0; up_too && c < place.children.size() && i < pieces.count; ++c) {
      AGPCS_RETURN_IF_ERROR(ask(from_child[c], i, scratch(c, i), place.children[c]));
    }
    return {};
  };
  const auto ask_above = [&](std::size_t i) -> Status {
    if (!down_too || i >= pieces.count) return {};
    return ask(from_above, i, pieces.piece(i), place.parent);
  };
  const auto send_down = [&](std::size_t i) -> Status {
    for (const int child : place.children) {
      AGPCS_RETURN_IF_ERROR(post_sends(pieces.piece(i), child, slot));
    }
    return {};
  };
  const auto up = [&](std::size_t i) -> Status {
    const Span to = pieces.piece(i);
    for (std::size_t c = 0; up_too && c < place.children.size(); ++c) {
      AGPCS_RETURN_IF_ERROR(awaited_.wait(*from_child[c][i % kAhead], place.children[c]));
      add_into(to.data, scratch(c, i).data, to.bytes / size_of(call.buffer.type), call.buffer.type);
    }
    AGPCS_RETURN_IF_ERROR(ask_below(i + kAhead));
    if (root) return gathers(call.kind) ? send_down(i) : Status();
    return up_too ? post_sends(to, place.parent, slot) : Status();
  };
  const auto down = [&](std::size_t i) -> Status {
    AGPCS_RETURN_IF_ERROR(awaited_.wait(*from_above[i % kAhead], place.parent));
    AGPCS_RETURN_IF_ERROR(ask_above(i + kAhead));
    return send_down(i);
  };
  for (std::size_t i = 0; i < kAhead; ++i) {
    AGPCS_RETURN_IF_ERROR(ask_below(i));
    AGPCS_RETURN_IF_ERROR(ask_above(i));
  }
  const std::size_t behind = up_too ? pieces.behind : 0;
  for (std::size_t i = 0; i < pieces.count + (down_too ? behind : 0); ++i) {
    if (i < pieces.count) AGPCS_RETURN_IF_ERROR(up(i));
    if (down_too && i >= behind) AGPCS_RETURN_IF_ERROR(down(i - behind));
  }
  return finish();
}

Status WireCollectives::sum_on_first(const std::vector<int>& ranks, const Buffer& buffer,
                                     std::uint64_t slot) {
  if (ranks.front() != rank_) {
    AGPCS_RETURN_IF_ERROR(post_sends(whole(buffer), ranks.front(), slot));
    return finish();
  }
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    AGPCS_RETURN_IF_ERROR(add_all(whole(buffer), buffer.type, ranks[i], slot));
  }
  return {};
}

Status WireCollectives::gather_on_first(const RankGroup& group, const std::vector<int>& ranks,
                                        std::uint64_t slot) {
  if (ranks.front() != rank_) {
    AGPCS_RETURN_IF_ERROR(post_sends(parts_[group.me], ranks.front(), slot));
    return finish();
  }
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    AGPCS_RETURN_IF_ERROR(post_recvs(parts_[group.index_of(ranks[i])], ranks[i], slot));
  }
  return finish();
}

Status WireCollectives::hand_out(const RankGroup& group, const std::vector<int>& ranks,
                                 const WireCollective& call, std::uint64_t slot) {
  const auto due_to = [&](int rank) {
    return gathers(call.kind) ? whole(call.buffer) : parts_[group.index_of(rank)];
  };
  if (ranks.front() != rank_) {
    AGPCS_RETURN_IF_ERROR(post_recvs(due_to(rank_), ranks.front(), slot));
    return finish();
  }
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    AGPCS_RETURN_IF_ERROR(post_sends(due_to(ranks[i]), ranks[i], slot));
  }
  return finish();
}

Status WireCollectives::post_sends(Span span, int peer, std::uint64_t slot) {
  for (std::size_t at = 0; at < span.bytes; at += kSegmentBytes) {
    const std::size_t bytes = std::min(kSegmentBytes, span.bytes - at);
    AGPCS_RETURN_IF_ERROR(post_send(Span{span.data + at, bytes}, peer, slot));
  }
  return {};
}

Status WireCollectives::post_recvs(Span span, int peer, std::uint64_t slot) {
  for (std::size_t at = 0; at < span.bytes; at += kSegmentBytes) {
    const std::size_t bytes = std::min(kSegmentBytes, span.bytes - at);
    AGPCS_TRY(auto message, wire_.recv(span.data + at, bytes, peer, slot));
    posted_.push_back({std::move(message), peer});
  }
  return {};
}

Status WireCollectives::post_send(const Pieces& from, int peer, std::uint64_t slot) {
  if (from.bytes() == 0) return {};
  AGPCS_TRY(auto message, wire_.send_pieces(from, peer, slot));
  posted_.push_back({std::move(message), peer});
  return {};
}

Status WireCollectives::finish() {
  for (const Posted& one : posted_) AGPCS_RETURN_IF_ERROR(awaited_.wait(*one.message, one.peer));
  posted_.clear();
  return {};
}

Status WireCollectives::add_all(Span span, DType type, int peer, std::uint64_t slot) {
  Arriving arriving;
  const std::size_t segments = (span.bytes + kSegmentBytes - 1) / kSegmentBytes;
  for (std::size_t i = 0; i < segments + kAhead; ++i) {
    if (i >= kAhead && i - kAhead < segments) {
      AGPCS_RETURN_IF_ERROR(awaited_.wait(*arriving[i % kAhead], peer));
    }
    if (i >= segments) continue;
    const std::size_t at = i * kSegmentBytes;
    const Span to = {span.data + at, std::min(kSegmentBytes, span.bytes - at)};
    AGPCS_TRY(arriving[i % kAhead], wire_.recv_and_add(to, type, peer, slot));
  }
  return {};
}

}  // namespace agpcs
