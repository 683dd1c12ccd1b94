// SPDX-License-Identifier: Apache-2.0
// ResponseCache: what ranks have agreed on before, so that one bit is enough to agree on it again
// (Romero et al., NSDI 2022, section 3.1).
#pragma once

#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Type and size that a rank submits for a gradient.
struct TensorShape {
  DType type = DType::kFp32;
  std::int64_t elements = 0;
  std::int64_t bytes() const { return elements * static_cast<std::int64_t>(size_of(type)); }
  friend bool operator==(const TensorShape&, const TensorShape&) = default;
};

/// A cache of at most `capacity` answers; the least recently used one makes room for a new one.
/// Ranks that make the same calls have the same contents, with each answer at the same bit.
class ResponseCache {
 public:
  /// Answers are about units, which are numbered from 0.
  ResponseCache(std::size_t capacity, std::size_t units);

  /// Returns how many bits a message about the cache has.
  std::size_t bits() const { return slots_.size(); }
  int bit_of(int unit) const { return bit_of_unit_[static_cast<std::size_t>(unit)]; }  ///< -1: none
  int unit_at(std::size_t bit) const { return slots_[bit].unit; }  ///< -1: the slot is free
  const std::vector<TensorShape>& shapes_at(std::size_t bit) const { return slots_[bit].shapes; }
  std::uint64_t used_at(std::size_t bit) const { return slots_[bit].used; }  ///< grows with time

  void use(std::size_t bit) { slots_[bit].used = ++clock_; }
  /// Adds an answer. Needs: the unit is not cached. Returns whether another answer had to go.
  bool put(int unit, std::vector<TensorShape> shapes);
  void erase(std::size_t bit);

 private:
  struct Slot {
    int unit = -1;
    std::vector<TensorShape> shapes;
    std::uint64_t used = 0;
  };
  std::size_t slot_for_next();

  std::size_t capacity_;
  std::vector<Slot> slots_;
  std::vector<int> bit_of_unit_;
  std::uint64_t clock_ = 0;
};

}  // namespace agpcs
