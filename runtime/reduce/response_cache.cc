// SPDX-License-Identifier: Apache-2.0
#include "runtime/reduce/response_cache.h"

#include "ir/base/check.h"

#include <algorithm>
#include <utility>

namespace agpcs {

ResponseCache::ResponseCache(std::size_t capacity, std::size_t units)
    : capacity_(capacity), bit_of_unit_(units, -1) {}

bool ResponseCache::put(int unit, std::vector<TensorShape> shapes) {
  AGPCS_CHECK(bit_of(unit) < 0, "unit {} is in the cache", unit);
  if (capacity_ == 0) return false;
  const std::size_t bit = slot_for_next();
  const bool evicts = slots_[bit].unit >= 0;
  if (evicts) erase(bit);
  slots_[bit] = {unit, std::move(shapes), ++clock_};
  bit_of_unit_[static_cast<std::size_t>(unit)] = static_cast<int>(bit);
  return evicts;
}

void ResponseCache::erase(std::size_t bit) {
  bit_of_unit_[static_cast<std::size_t>(slots_[bit].unit)] = -1;
  slots_[bit] = {};
}

// Returns a free slot, or else a new one, or else that of the least recently used answer.
std::size_t ResponseCache::slot_for_next() {
  const auto oldest = std::min_element(slots_.begin(), slots_.end(), [](auto& a, auto& b) {
    return a.used < b.used;  // a free slot has 0
  });
  if (oldest != slots_.end() && (oldest->unit < 0 || slots_.size() == capacity_)) {
    return static_cast<std::size_t>(oldest - slots_.begin());
  }
  slots_.emplace_back();
  return slots_.size() - 1;
}

}  // namespace agpcs
