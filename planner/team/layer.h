// SPDX-License-Identifier: Apache-2.0
// The states of a team's dynamic program at one place.
#pragma once

#include "planner/problem/hash.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {

/// How the tensors of a frontier lie: a number of `TensorStates` for each.
using FrontierKey = std::span<const std::uint16_t>;

/// States with their seconds, numbered as they come. No two have the same key, and all keys are
/// equally long.
class FrontierLayer {
 public:
  explicit FrontierLayer(std::size_t key_size) : key_size_(key_size), places_(16, kFree) {}

  std::size_t size() const { return seconds_.size(); }
  FrontierKey key(std::size_t state) const { return {keys_.data() + state * key_size_, key_size_}; }
  double& seconds(std::size_t state) { return seconds_[state]; }
  double seconds(std::size_t state) const { return seconds_[state]; }

  /// Returns the number of the state with this key, and whether it is new: it then has `seconds`.
  std::pair<std::size_t, bool> add(FrontierKey key, double seconds) {
    std::int32_t& place = place_of(key);
    if (place != kFree) return {static_cast<std::size_t>(place), false};
    const std::size_t number = size();
    place = static_cast<std::int32_t>(number);
    keys_.insert(keys_.end(), key.begin(), key.end());
    seconds_.push_back(seconds);
    if (2 * size() > places_.size()) widen();
    return {number, true};
  }

 private:
  static constexpr std::int32_t kFree = -1;

  /// Returns where the key is, or may be put.
  std::int32_t& place_of(FrontierKey key) {
    std::uint64_t hash = 0x243f6a8885a308d3ULL;
    for (const std::uint16_t number : key) hash = mix(hash, number);
    const std::size_t mask = places_.size() - 1;
    std::size_t place = static_cast<std::size_t>(hash >> 20) & mask;
    while (places_[place] != kFree &&
           !std::ranges::equal(this->key(static_cast<std::size_t>(places_[place])), key)) {
      place = (place + 1) & mask;
    }
    return places_[place];
  }

  void widen() {
    places_.assign(2 * places_.size(), kFree);
    for (std::size_t s = 0; s < size(); ++s) place_of(key(s)) = static_cast<std::int32_t>(s);
  }

  std::size_t key_size_;
  std::vector<std::uint16_t> keys_;  // of all states, one behind the other
  std::vector<double> seconds_;
  std::vector<std::int32_t> places_;  // a hash table of numbers of states
};

}  // namespace agpcs
