// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/state_part.h"

#include <algorithm>

namespace agpcs {
namespace {

/// Calls `f(begin, end)` for each run of elements of [first, first + count) that `item` has.
template <typename F>
void for_each_range(const StateItem& item, std::int64_t first, std::int64_t count, F f) {
  const std::int64_t begin = std::max(first, item.before);
  const std::int64_t end = std::min(first + count, item.elements - item.after);
  if (end <= begin) return;
  if (!item.is_part_along_axis()) return f(begin, end);
  for (std::int64_t row = begin / item.period * item.period; row < end; row += item.period) {
    for (const ElementRange& run : item.runs) {
      const std::int64_t from = std::max(begin, row + run.begin);
      const std::int64_t to = std::min(end, row + run.end);
      if (from < to) f(from, to);
    }
  }
}

}  // namespace

bool has_all_of(const StateItem& own, const StateItem& item, std::int64_t first,
                std::int64_t count) {
  if (own.elements != item.elements || first < 0 || first + count > own.elements) return false;
  if (!item.is_part_along_axis()) return own.count_of(first, count) == count;
  if (own.is_same_part(item)) return true;
  bool all = true;
  for_each_range(item, first, count, [&](std::int64_t begin, std::int64_t end) {
    all = all && own.count_of(begin, end - begin) == end - begin;
  });
  return all;
}

void for_each_run(const StateItem& own, const StateItem& item, std::int64_t first,
                  std::int64_t count,
                  const std::function<void(std::int64_t at, std::int64_t elements)>& run) {
  const std::int64_t at = own.count_of(0, first);
  if (!item.is_part_along_axis()) return run(at, count);
  if (own.is_same_part(item)) return run(at, own.count_of(first, count));
  for_each_range(item, first, count, [&](std::int64_t begin, std::int64_t end) {
    run(own.count_of(0, begin), end - begin);
  });
}

std::optional<StateItem> common_part(const StateItem& a, const StateItem& b) {
  if (b.size() == b.elements) return a.size() > 0 ? std::optional(a) : std::nullopt;
  if (a.size() == a.elements) return b.size() > 0 ? std::optional(b) : std::nullopt;
  const auto row_of = [](const StateItem& item) {
    return item.is_part_along_axis() ? item.period : item.elements;
  };
  const std::int64_t period = std::max(row_of(a), row_of(b));  // all such rows are alike
  StateItem common{a.tensor, a.slot, a.elements};
  for_each_range(b, 0, period, [&](std::int64_t begin, std::int64_t end) {
    for_each_range(a, begin, end - begin, [&](std::int64_t from, std::int64_t to) {
      common.runs.push_back({from, to});
    });
  });
  if (common.runs.empty()) return {};
  if (period < common.elements || common.runs.size() > 1) {
    common.period = period;
    return common;
  }
  common.before = common.runs[0].begin;
  common.after = common.elements - common.runs[0].end;
  common.runs.clear();
  return common;
}

StateItem whole_of(const StateItem& item) { return {item.tensor, item.slot, item.elements}; }

void pack(const StateItem& item, std::int64_t first, std::int64_t count, const float* whole,
          float* part) {
  for_each_range(item, first, count, [&](std::int64_t begin, std::int64_t end) {
    part = std::copy(whole + (begin - first), whole + (end - first), part);
  });
}

void unpack(const StateItem& item, std::int64_t first, std::int64_t count, const float* part,
            float* whole) {
  for_each_range(item, first, count, [&](std::int64_t begin, std::int64_t end) {
    std::copy(part, part + (end - begin), whole + (begin - first));
    part += end - begin;
  });
}

}  // namespace agpcs
