// SPDX-License-Identifier: Apache-2.0
// What a FakeExecutor has learned.
#include "ir/plan/body/groups.h"
#include "tests/runtime/fake_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace agpcs {

std::vector<StateItem> FakeExecutor::state() const {
  std::vector<StateItem> items;
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const PlanBucket& bucket = plan_.buckets[b];
    if (!holds(plan_, rank_, bucket)) continue;
    if (buckets_[b].size() <
        static_cast<std::size_t>(bucket.elements())) {  // a part of its one parameter
      const std::int64_t all = 2 * bucket.elements();
      const std::int64_t first = 2 * static_cast<std::int64_t>(first_[b]);
      const std::int64_t rest = all - first - 2 * owned_[b].size();
      items.push_back({bucket.members[0].parameter, kValueSlot, all, first, rest});
      if (remembers) items.push_back({bucket.members[0].parameter, "momentum", all, first, rest});
      continue;
    }
    std::int64_t begin = 0;
    for (const BucketMember& member : bucket.members) {
      const std::int64_t end = begin + member.elements;
      const std::int64_t first = std::clamp(owned_[b].begin, begin, end);
      const std::int64_t last = std::clamp(owned_[b].end, first, end);
      if (!divides_parameters(b)) {
        items.push_back({member.parameter, kValueSlot, 2 * member.elements});
      } else if (first < last || begin == end) {
        items.push_back({member.parameter, kValueSlot, 2 * member.elements, 2 * (first - begin),
                         2 * (end - last)});
      }
      if (remembers && first < last) {
        items.push_back({member.parameter, "momentum", 2 * member.elements, 2 * (first - begin),
                         2 * (end - last)});
      }
      begin = end;
    }
  }
  return items;
}

Result<const char*> FakeExecutor::bytes_of(const StateItem& item, std::int64_t first_of_whole,
                                           std::int64_t count) const {
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const bool ours = holds(plan_, rank_, plan_.buckets[b]);
    const PlanBucket bucket = ours ? held_by(plan_, plan_.buckets[b], rank_) : plan_.buckets[b];
    const std::int64_t first = first_of_whole - 2 * static_cast<std::int64_t>(first_[b]);
    std::size_t offset = 0;
    for (const BucketMember& member : bucket.members) {
      const bool is_value = item.slot == kValueSlot;
      const bool whole = is_value && !divides_parameters(b);
      const auto& of = whole ? parameters_[b] : is_value ? parts_[b] : momentum_[b];
      const auto at = static_cast<std::int64_t>(offset);
      const std::int64_t from = whole ? 0 : owned_[b].begin - at;
      const std::int64_t to = whole ? member.elements : owned_[b].end - at;
      const bool fits = first >= 2 * std::max<std::int64_t>(0, from) &&
                        first + count <= 2 * std::min(member.elements, to);
      if (ours && member.parameter == item.tensor && fits) {
        const std::int64_t begin = at - (is_value && !whole ? owned_[b].begin : 0);
        return reinterpret_cast<const char*>(of.data()) +
               begin * static_cast<std::int64_t>(sizeof(double)) +
               first * static_cast<std::int64_t>(sizeof(float));
      }
      offset += static_cast<std::size_t>(member.elements);
    }
  }
  return internal_error(fmt::format("rank {} has not elements {} to {} of '{}' of '{}'", rank_,
                                    first_of_whole, first_of_whole + count, item.slot,
                                    item.tensor));
}

Status FakeExecutor::read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                                float* out) const {
  AGPCS_TRY(const char* bytes, bytes_of(item, first, count));
  if (count > 0) std::memcpy(out, bytes, static_cast<std::size_t>(count) * sizeof(float));
  return {};
}

Status FakeExecutor::write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                                 const float* values) {
  AGPCS_TRY(const char* bytes, bytes_of(item, first, count));
  const std::size_t size = static_cast<std::size_t>(count) * sizeof(float);
  if (size > 0) std::memcpy(const_cast<char*>(bytes), values, size);
  return {};
}

}  // namespace agpcs
