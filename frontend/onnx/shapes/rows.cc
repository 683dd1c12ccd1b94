// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/rows.h"

#include <utility>
#include <vector>

namespace agpcs::frontend {

void keep_rows(Tensor& tensor, std::size_t axis, std::int64_t count) {
  const Shape outer(tensor.shape.begin(), tensor.shape.begin() + static_cast<std::ptrdiff_t>(axis));
  const std::vector<std::byte> whole = std::move(tensor.constant.bytes);
  tensor.constant.bytes.clear();
  const auto blocks = static_cast<std::size_t>(elements_at(outer, 0));
  const std::size_t block = whole.size() / blocks;
  const std::size_t kept =
      block / static_cast<std::size_t>(tensor.shape[axis].fixed) * static_cast<std::size_t>(count);
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(b * block);
    tensor.constant.bytes.insert(tensor.constant.bytes.end(), begin,
                                 begin + static_cast<std::ptrdiff_t>(kept));
  }
  tensor.shape[axis] = {count, 0};
}

}  // namespace agpcs::frontend
