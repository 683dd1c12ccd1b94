// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/reduce/response_cache.h"

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace agpcs {

/// Gradients that one all-reduce sums; this is their order in its memory.
struct FusedTensors {
  DType type = DType::kFp32;
  std::int64_t elements = 0;
  std::vector<int> gradients;
  friend bool operator==(const FusedTensors&, const FusedTensors&) = default;
};

/// Fuses `gradients` as Horovod's tensor fusion does: the first remaining gradient begins an
/// all-reduce, and each later one of its type joins if the total stays within `most_bytes`.
/// Gradients of `alone_bytes` or more stay alone. `shapes` is by gradient. Cost: O(gradients
/// x all-reduces).
std::vector<FusedTensors> fuse(std::span<const int> gradients, std::span<const TensorShape> shapes,
                               std::int64_t most_bytes,
                               std::int64_t alone_bytes = std::numeric_limits<std::int64_t>::max());

}  // namespace agpcs
