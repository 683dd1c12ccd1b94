// SPDX-License-Identifier: Apache-2.0
// RingWalk: the order in which one member of a ring sends and receives the segments of a buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace agpcs {

/// A part of a buffer.
struct Span {
  char* data = nullptr;
  std::size_t bytes = 0;
};

/// A buffer on its way around a ring of n members. It has a chunk for each member. In step 0,
/// member m sends chunk m; in each further step it sends the chunk before the one that it sent
/// last. In every step it receives the chunk before the one that it sends. Before step n - 1, what
/// comes is added, so that member m then has the whole chunk m + 1; from that step to the last, 2 n
/// - 3, whole chunks are passed on.
struct Ring {
  std::size_t members = 1, me = 0;
  std::size_t begin = 0, end = 0;  ///< steps that are made: from `begin` to before `end`
  /// Bytes of the buffer, members + 1 of them: chunk c lies from place (c + shift) % n to the next.
  const std::vector<std::size_t>* bounds = nullptr;
  std::size_t shift = 0;
  char* data = nullptr;
  std::size_t segment_bytes = 1;

  bool adds(std::size_t step) const { return step + 1 < members; }
  Span chunk(std::size_t number) const {
    const std::size_t place = (number + shift) % members;
    return {data + (*bounds)[place], (*bounds)[place + 1] - (*bounds)[place]};
  }
};

/// Walks over the segments that a member sends, or receives, in the order in which they travel.
/// Chunks without elements have no segments.
class RingWalk {
 public:
  enum class Way : std::size_t { kSends = 0, kReceives = 1 };
  RingWalk(const Ring& ring, Way way)
      : ring_(&ring), behind_(static_cast<std::size_t>(way)), step_(ring.begin) {
    settle();
  }

  bool over() const { return step_ == ring_->end; }
  /// Returns how many segments it has passed.
  std::size_t passed() const { return passed_; }
  std::size_t step() const { return step_; }
  Span segment() const {
    const Span chunk = this->chunk();
    return {chunk.data + at_, std::min(ring_->segment_bytes, chunk.bytes - at_)};
  }
  void advance() {
    ++passed_;
    at_ += ring_->segment_bytes;
    settle();
  }
  /// Returns whether it has passed the segment of the step before that `sends` is about to pass on.
  bool has_brought(const RingWalk& sends) const {
    return over() || std::pair(step_ + 1, at_) > std::pair(sends.step_, sends.at_);
  }

 private:
  Span chunk() const {
    return ring_->chunk((ring_->me + 2 * ring_->members - step_ - behind_) % ring_->members);
  }
  void settle() {
    while (!over() && at_ >= chunk().bytes) {
      at_ = 0;
      ++step_;
    }
  }

  const Ring* ring_;
  std::size_t behind_;  // a member receives the chunk before the one that it sends
  std::size_t step_, at_ = 0, passed_ = 0;
};

}  // namespace agpcs
