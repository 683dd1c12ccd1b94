// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/state_parts.h"

#include "ir/plan/choices.h"
#include "ir/strategy/plan_graph.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace agpcs {
namespace {

constexpr std::int64_t kStateElementBytes = 4;  // fp32

__extension__ using Wide = __int128;  // for products of elements

/// Gives what rounding left to the first of the largest parts.
void give_rest(std::int64_t elements, std::vector<std::int64_t>& parts) {
  const std::int64_t given = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  *std::max_element(parts.begin(), parts.end()) += elements - given;
}

/// Gives each owner in proportion to its speed what is left to give. One that has no room for that
/// gets what it has room for, which leaves more for the others.
std::vector<double> by_speed(double left, std::span<const StateOwner> owners) {
  std::vector<double> given(owners.size(), -1);  // -1: not settled
  while (true) {
    double speed = 0;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (given[i] < 0) speed += owners[i].speed;
    }
    bool settled = true;
    double taken = 0;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const auto room = static_cast<double>(std::max<std::int64_t>(0, owners[i].room));
      if (given[i] >= 0 || owners[i].speed / speed * left <= room) continue;
      given[i] = room;
      taken += room;
      settled = false;
    }
    if (settled) {
      for (std::size_t i = 0; i < owners.size(); ++i) {
        if (given[i] < 0) given[i] = owners[i].speed / speed * left;
      }
      return given;
    }
    left -= taken;
  }
}

}  // namespace

std::int64_t state_bytes(const Optimizer& optimizer, DType held) {
  const int copies = size_of(held) < size_of(DType::kFp32) ? 1 : 0;
  return kStateElementBytes * (variant_of(optimizer).state_tensors + copies);
}

std::int64_t state_bytes(const Training& training) {
  return state_bytes(training.optimizer, held_type(DType::kFp32, training.precision));
}

std::int64_t divided_element_bytes(const Optimizer& optimizer, DType held, StateLevel level,
                                   bool in_host) {
  if (level == StateLevel::kWhole) return 0;
  const std::int64_t copies = level == StateLevel::kParameters  ? 2
                              : level == StateLevel::kGradients ? 1
                                                                : 0;
  return (in_host ? 0 : state_bytes(optimizer, held)) +
         copies * static_cast<std::int64_t>(size_of(held));
}

StateLevel divided_by(const StageSpec& spec, const Training& training) {
  if (spec.devices.size() < 2) return StateLevel::kWhole;
  const bool nothing = spec.state == StateLevel::kOptimizer && state_bytes(training) == 0;
  return nothing ? StateLevel::kWhole : spec.state;
}

bool divides_state(const StageSpec& spec, const Training& training) {
  return divided_by(spec, training) != StateLevel::kWhole;
}

void DividedState::add(std::int64_t elements, DType held, std::size_t parameters) {
  const std::int64_t each = divided_element_bytes(optimizer_, held, level_, in_host_);
  elements_ += elements;
  bytes_ += elements * each;
  widest_ = std::max(widest_, each);
  parameters_ += parameters;
}

StateOwner DividedState::owner(const DeviceKind& kind, std::int64_t peak_bytes,
                               std::size_t replicas) const {
  const double speed = in_host_ ? kind.host_link.bandwidth : kind.memory_bandwidth;
  if (widest_ == 0) return {speed, elements_};  // nothing to divide takes memory of the device
  const std::int64_t free = kind.memory_bytes - (peak_bytes - bytes_);
  const std::int64_t room = free >= 0 ? free / widest_ : -((widest_ - 1 - free) / widest_);
  // The parts of the stage are rounded, and those of each of its buckets, of which there are no
  // more than parameters: by less than an element for each replica.
  return {speed, room - static_cast<std::int64_t>((parameters_ + 1) * replicas)};
}

std::vector<std::int64_t> divide_state(std::int64_t elements, std::span<const StateOwner> owners) {
  std::int64_t room = 0;
  for (const StateOwner& owner : owners) room += std::max<std::int64_t>(0, owner.room);
  std::vector<double> given;
  if (room >= elements) {
    given = by_speed(static_cast<double>(elements), owners);
  } else {
    const double lacking =
        static_cast<double>(elements - room) / static_cast<double>(owners.size());
    for (const StateOwner& owner : owners) {
      given.push_back(static_cast<double>(std::max<std::int64_t>(0, owner.room)) + lacking);
    }
  }
  std::vector<std::int64_t> owned;
  for (const double some : given) owned.push_back(static_cast<std::int64_t>(std::floor(some)));
  give_rest(elements, owned);
  return owned;
}

std::vector<std::int64_t> bucket_parts(std::int64_t elements, std::span<const std::int64_t> owned) {
  const std::int64_t all = std::accumulate(owned.begin(), owned.end(), std::int64_t{0});
  std::vector<std::int64_t> parts;
  for (const std::int64_t own : owned) {
    const Wide part = static_cast<Wide>(elements) * own / std::max<std::int64_t>(1, all);
    parts.push_back(static_cast<std::int64_t>(part));
  }
  give_rest(elements, parts);
  return parts;
}

void FilledBucket::add(OpId reads, OpId begun, OpId made, std::int64_t own, std::int64_t rounded) {
  read = std::max(read, reads);
  bytes += own;
  rounded_bytes += rounded;
  first = first == kNone ? begun : std::max(first, begun);
  if (last == kNone || made < last) last_bytes = 0;
  last = last == kNone ? made : std::min(last, made);
  if (made == last && begun == made) last_bytes += own;
}

OpId needed_before(OpId reader, std::span<const OpId> ops,
                   std::span<const std::size_t> segment_ends) {
  const auto place =
      static_cast<std::size_t>(std::lower_bound(ops.begin(), ops.end(), reader) - ops.begin());
  const auto end = std::upper_bound(segment_ends.begin(), segment_ends.end(), place);
  return end == segment_ends.end() ? reader : ops[*end - 1];
}

void FilledBucket::gather(std::span<const OpId> ops, std::span<const std::size_t> segment_ends) {
  gathered = true;
  if (read != kNone) needed = needed_before(read, ops, segment_ends);
}

std::vector<BucketUse> backward_uses(std::span<const FilledBucket> buckets) {
  std::vector<BucketUse> uses;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (!buckets[b].gathered) continue;
    BucketUse use = {static_cast<int>(b), 0};
    for (const FilledBucket& filled : buckets) {  // buckets are summed in their order
      if (filled.last <= buckets[b].needed) break;
      ++use.filled;
    }
    uses.push_back(use);
  }
  std::stable_sort(uses.begin(), uses.end(), [&](const BucketUse& a, const BucketUse& b) {
    return buckets[static_cast<std::size_t>(a.bucket)].needed >
           buckets[static_cast<std::size_t>(b.bucket)].needed;
  });
  return uses;
}

namespace {

/// Sorts changes in the order of a pass, and joins those of one operator.
void put_in_order(std::vector<HeldChange>& changes, bool forward) {
  std::sort(changes.begin(), changes.end(), [&](const HeldChange& a, const HeldChange& b) {
    return forward ? a.op < b.op : a.op > b.op;
  });
  std::erase_if(changes, [](const HeldChange& change) { return change.op == kNone; });
  std::size_t joined = 0;
  for (std::size_t i = 1; i < changes.size(); ++i) {
    if (changes[i].op != changes[joined].op) {
      changes[++joined] = changes[i];
      continue;
    }
    changes[joined].before += changes[i].before;
    changes[joined].after += changes[i].after;
  }
  if (!changes.empty()) changes.resize(joined + 1);
}

void add_gathered(std::span<const FilledBucket> buckets, std::span<const BucketUse> uses,
                  HeldInPasses& held) {
  std::vector<const FilledBucket*> forward, backward;
  for (auto b = buckets.rbegin(); b != buckets.rend(); ++b) {
    if (b->gathered) forward.push_back(&*b);
  }
  for (const BucketUse& use : uses) {
    backward.push_back(&buckets[static_cast<std::size_t>(use.bucket)]);
  }
  held.at_forward = forward.front()->bytes;
  held.at_backward = backward.front()->bytes;
  held.ahead = std::max(held.at_forward, held.at_backward);
  for (std::size_t now = 0; now < uses.size(); ++now) {
    const bool last = now + 1 == uses.size();
    const FilledBucket &read = *forward[now], &filled = *backward[now];
    held.forward.push_back({read.last, last ? held.ahead : forward[now + 1]->bytes, 0});
    held.forward.push_back({read.read, 0, -read.bytes});
    held.backward.push_back({filled.needed, last ? held.ahead : backward[now + 1]->bytes, 0});
    held.backward.push_back({filled.last, 0, -filled.bytes});
  }
}

}  // namespace

HeldInPasses held_in_passes(std::span<const FilledBucket> buckets,
                            std::span<const BucketUse> uses) {
  HeldInPasses held;
  OpId full = kNone;  // the operator after which a bucket and all before it are full
  for (const FilledBucket& bucket : buckets) {
    held.summing = std::max(held.summing, bucket.bytes + bucket.rounded_bytes);
    full = full == kNone ? bucket.last : std::min(full, bucket.last);
    // While `last` makes gradients that nobody else begins, these do not wait yet.
    held.backward.push_back({bucket.first, bucket.bytes - bucket.last_bytes, 0});
    held.backward.push_back({bucket.last, 0, bucket.last_bytes});
    held.backward.push_back({full, 0, -bucket.bytes});
  }
  if (!uses.empty()) add_gathered(buckets, uses, held);
  put_in_order(held.forward, true);
  put_in_order(held.backward, false);
  return held;
}

}  // namespace agpcs
