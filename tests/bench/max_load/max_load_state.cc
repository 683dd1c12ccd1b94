// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/max_load/max_load_state.h"

#include "ir/base/at.h"

#include <algorithm>
#include <utility>

namespace agpcs {

MaxLoadState::MaxLoadState(const MaxLoadItems& items, std::vector<int> device_of_item)
    : items_(&items), columns_(items.devices + 1), device_(items.items.size(), 0) {
  assign(device_of_item);
}

void MaxLoadState::assign(const std::vector<int>& device_of_item) {
  const MaxLoadItems& items = *items_;
  device_ = device_of_item;
  count_.assign(items.nets.size() * at(columns_), 0);
  present_.assign(items.nets.size(), 0);
  load_.assign(at(columns_), 0);
  size_.assign(at(columns_), 0);
  communication_ = excess_ = 0;
  for (int i = 0; i < items.size(); ++i) {
    const MaxLoadItem& item = items.items[at(i)];
    load_[at(device_[at(i)])] += device_[at(i)] == 0 ? item.cpu_time : item.time;
    occupy(device_[at(i)], item.size);
  }
  for (std::size_t n = 0; n < items.nets.size(); ++n) {
    const MaxLoadNet& net = items.nets[n];
    int* row = count_.data() + n * at(columns_);
    for (int i = net.first_sink; i < net.end_sink; ++i) ++row[device_[at(items.sinks[at(i)])]];
    const int source = device_[at(net.source)];
    int remote = 0;
    for (int d = 0; d < columns_; ++d) {
      present_[n] += row[d] > 0 ? 1 : 0;
      if (row[d] == 0 || d == source) continue;
      ++remote;
      pay(d, net.cost);
    }
    if (remote > 0) pay(source, net.cost);
  }
}

void MaxLoadState::occupy(int device, std::int64_t size) {
  if (device == 0) return;
  std::int64_t& used = size_[at(device)];
  excess_ -= std::max<std::int64_t>(0, used - items_->capacity);
  used += size;
  excess_ += std::max<std::int64_t>(0, used - items_->capacity);
}

int MaxLoadState::move(int item, int device) {
  const MaxLoadItems& items = *items_;
  const int a = device_[at(item)], b = device;
  if (a == b) return 0;
  const MaxLoadItem& it = items.items[at(item)];
  load_[at(a)] -= a == 0 ? it.cpu_time : it.time;
  load_[at(b)] += b == 0 ? it.cpu_time : it.time;
  occupy(a, -it.size);
  occupy(b, it.size);
  const int first_net = items.first_net[at(item)], end_net = items.first_net[at(item) + 1];
  for (int n = first_net; n < end_net; ++n) {  // a net's source pays if a sink is elsewhere
    const int* row = count_.data() + at(n) * at(columns_);
    const std::int64_t cost = items.nets[at(n)].cost;
    const int in_a = row[a] > 0 ? 1 : 0, in_b = row[b] > 0 ? 1 : 0;
    pay(a, cost * (in_a - (present_[at(n)] > in_a ? 1 : 0)));
    pay(b, cost * ((present_[at(n)] > in_b ? 1 : 0) - in_b));
  }
  const int first_read = items.first_read[at(item)], end_read = items.first_read[at(item) + 1];
  for (int r = first_read; r < end_read; ++r) {
    const int n = items.reads[at(r)];
    int* row = count_.data() + at(n) * at(columns_);
    const MaxLoadNet& net = items.nets[at(n)];
    const int source = device_[at(net.source)];
    const bool was_cut = present_[at(n)] > (row[source] > 0 ? 1 : 0);
    if (--row[a] == 0) {
      --present_[at(n)];
      if (a != source) pay(a, -net.cost);
    }
    if (row[b]++ == 0) {
      ++present_[at(n)];
      if (b != source) pay(b, net.cost);
    }
    const bool is_cut = present_[at(n)] > (row[source] > 0 ? 1 : 0);
    if (was_cut != is_cut) pay(source, is_cut ? net.cost : -net.cost);
  }
  device_[at(item)] = b;
  return end_net - first_net + end_read - first_read;
}

std::int64_t MaxLoadState::max_load() const {
  return *std::max_element(load_.begin(), load_.end());
}

}  // namespace agpcs
