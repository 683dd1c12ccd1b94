// SPDX-License-Identifier: Apache-2.0
// RingWalk: the order in which one member of a ring sends and receives the segments of a buffer.
#pragma once

#include "runtime/transport/wire.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace agpcs {

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
  const std::vector<Area>* areas = nullptr;  ///< where the buffer lies, as `Pieces` takes them
  std::size_t segment_bytes = 1;             ///< at most

  bool adds(std::size_t step) const { return step + 1 < members; }
  /// Where a chunk begins and ends.
  std::pair<std::size_t, std::size_t> chunk(std::size_t number) const {
    const std::size_t place = (number + shift) % members;
    return {(*bounds)[place], (*bounds)[place + 1]};
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
  std::size_t passed_bytes() const { return passed_bytes_; }
  std::size_t step() const { return step_; }
  Pieces segment() const {
    const std::size_t from = chunk().first + at_;
    return {*ring_->areas, from, from + segment_bytes()};
  }
  void advance() {
    ++passed_;
    const std::size_t bytes = segment_bytes();
    passed_bytes_ += bytes;
    at_ += bytes;
    settle();
  }
  /// Returns whether it has passed the segment of the step before that `sends` is about to pass on.
  bool has_brought(const RingWalk& sends) const {
    return over() || std::pair(step_ + 1, at_) > std::pair(sends.step_, sends.at_);
  }

 private:
  std::size_t segment_bytes() const {
    const auto [begin, end] = chunk();
    return std::min(ring_->segment_bytes, end - begin - at_);
  }
  std::pair<std::size_t, std::size_t> chunk() const {
    return ring_->chunk((ring_->me + 2 * ring_->members - step_ - behind_) % ring_->members);
  }
  void settle() {
    while (!over() && chunk().first + at_ >= chunk().second) {
      at_ = 0;
      ++step_;
    }
  }

  const Ring* ring_;
  std::size_t behind_;  // a member receives the chunk before the one that it sends
  std::size_t step_, at_ = 0, passed_ = 0, passed_bytes_ = 0;
};

}  // namespace agpcs
