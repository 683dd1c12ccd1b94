// SPDX-License-Identifier: Apache-2.0
// Parts of tensors along an axis (StateItem::runs): which elements of a window they have, and
// where.
#pragma once

#include <agpcs/executor.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace agpcs {

/// Returns whether `own` has all of the elements [first, first + count) that `item` has.
bool has_all_of(const StateItem& own, const StateItem& item, std::int64_t first,
                std::int64_t count);

/// Goes through the elements [first, first + count) that `item` has, in runs of such that lie one
/// behind the other in what holds the elements of `own`: `run(at, elements)`, `at` counting from
/// its beginning. Needs: `has_all_of`. Cost: O(runs), one if both are the same part.
void for_each_run(const StateItem& own, const StateItem& item, std::int64_t first,
                  std::int64_t count,
                  const std::function<void(std::int64_t at, std::int64_t elements)>& run);

/// Returns the elements that both items of one tensor have; nullopt: none. Needs: one's period
/// divides the other's, as those of axes of a tensor do.
std::optional<StateItem> common_part(const StateItem& a, const StateItem& b);

/// Returns the whole tensor that `item` is a part of.
StateItem whole_of(const StateItem& item);
/// Copies what `item` has of a window of the whole tensor, the elements [first, first + count), and
/// back.
void pack(const StateItem& item, std::int64_t first, std::int64_t count, const float* whole,
          float* part);
void unpack(const StateItem& item, std::int64_t first, std::int64_t count, const float* part,
            float* whole);

}  // namespace agpcs
