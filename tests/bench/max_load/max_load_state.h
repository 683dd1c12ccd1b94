// SPDX-License-Identifier: Apache-2.0
// MaxLoadState: a placement of items that knows its loads after every move.
#pragma once

#include "tests/bench/max_load/max_load.h"

#include <cstdint>
#include <vector>

namespace agpcs {

class MaxLoadState {
 public:
  /// Needs: `items` outlives it; a device 0..devices for each item.
  MaxLoadState(const MaxLoadItems& items, std::vector<int> device_of_item);

  /// Puts `item` on `device`. Cost: O(nets of the item). Gives: the number of nets.
  int move(int item, int device);
  void assign(const std::vector<int>& device_of_item);

  const MaxLoadItems& items() const { return *items_; }
  const std::vector<int>& devices() const { return device_; }
  int device(int item) const { return device_[static_cast<std::size_t>(item)]; }
  const std::vector<std::int64_t>& loads() const { return load_; }  ///< by device, CPU first
  const std::vector<std::int64_t>& sizes() const { return size_; }  ///< of memory; the CPU's is 0
  std::int64_t max_load() const;
  /// What accelerators pay for communication, in all.
  std::int64_t communication() const { return communication_; }
  /// By how much accelerators' memory is exceeded, in all.
  std::int64_t excess() const { return excess_; }
  bool may_be_on(int item, int device) const {
    const MaxLoadItem& it = items_->items[static_cast<std::size_t>(item)];
    return device == 0 ? it.cpu : it.accelerator;
  }

 private:
  void pay(int device, std::int64_t cost) {
    if (device == 0) return;
    load_[static_cast<std::size_t>(device)] += cost;
    communication_ += cost;
  }
  void occupy(int device, std::int64_t size);

  const MaxLoadItems* items_;
  int columns_;
  std::vector<int> device_;
  std::vector<int> count_;    ///< [net][device]: sinks there
  std::vector<int> present_;  ///< [net]: devices with a sink
  std::vector<std::int64_t> load_, size_;
  std::int64_t communication_ = 0, excess_ = 0;
};

}  // namespace agpcs
