// SPDX-License-Identifier: Apache-2.0
#include "runtime/reduce/tensor_fusion.h"

#include <utility>

namespace agpcs {

std::vector<FusedTensors> fuse(std::span<const int> gradients, std::span<const TensorShape> shapes,
                               std::int64_t most_bytes, std::int64_t alone_bytes) {
  std::vector<FusedTensors> all;
  std::vector<int> left(gradients.begin(), gradients.end()), later;
  while (!left.empty()) {
    FusedTensors next;
    const TensorShape& first = shapes[static_cast<std::size_t>(left.front())];
    const bool alone = first.bytes() >= alone_bytes;
    next.type = first.type;
    std::int64_t bytes = 0;
    later.clear();
    for (const int gradient : left) {
      const TensorShape& shape = shapes[static_cast<std::size_t>(gradient)];
      const bool fits = !alone && shape.type == next.type && shape.bytes() < alone_bytes &&
                        bytes + shape.bytes() <= most_bytes;
      if (!next.gradients.empty() && !fits) {
        later.push_back(gradient);
        continue;
      }
      next.gradients.push_back(gradient);
      next.elements += shape.elements;
      bytes += shape.bytes();
    }
    all.push_back(std::move(next));
    std::swap(left, later);
  }
  return all;
}

}  // namespace agpcs
