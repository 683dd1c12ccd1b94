// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/rebind.h"

#include <algorithm>
#include <vector>

namespace agpcs::frontend {
namespace {

using Int = std::int64_t;

/// Returns the product of entries [from, to). The caller has checked that the whole does not
/// overflow.
Int product(const Dims& dims, std::size_t from, std::size_t to) {
  Int result = 1;
  for (std::size_t i = from; i < to; ++i) result *= dims[i];
  return result;
}

/// Returns the target with its 0 and -1 replaced by numbers; nullopt if it does not fit `data`.
std::optional<Dims> resolved(const Dims& data, Dims target) {
  const std::optional<Int> elements = element_count(data);
  auto wildcard = target.end();
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] == 0 && i < data.size()) target[i] = data[i];
    if (target[i] != -1) continue;
    if (wildcard != target.end()) return std::nullopt;
    wildcard = target.begin() + static_cast<std::ptrdiff_t>(i);
    *wildcard = 1;
  }
  const std::optional<Int> others = element_count(target);
  if (!elements || !others || *others == 0 || *elements % *others != 0) return std::nullopt;
  if (wildcard == target.end() && *elements != *others) return std::nullopt;
  if (wildcard != target.end()) *wildcard = *elements / *others;
  return target;
}

/// Returns the entries of `target` that can hold the batch if `before` elements lie outside of it
/// and `after` inside. Besides the batch, an entry may hold only whole axes from both sides.
std::vector<std::size_t> candidates(const Dims& target, Int before, Int after, Int batch) {
  std::vector<std::size_t> found;
  for (std::size_t j = 0; j < target.size(); ++j) {
    const Int outer = product(target, 0, j);
    const Int inner = product(target, j + 1, target.size());
    if (outer == 0 || inner == 0 || before % outer != 0 || after % inner != 0) continue;
    if (target[j] == before / outer * batch * (after / inner)) found.push_back(j);
  }
  return found;
}

/// Returns the only candidate, or the one whose entry is the batch alone.
std::optional<std::size_t> decide(const std::vector<std::size_t>& found, const Dims& target,
                                  Int batch, std::size_t axis) {
  if (found.size() == 1) return found[0];
  std::vector<std::size_t> exact;
  for (const std::size_t j : found) {
    if (target[j] == batch) exact.push_back(j);
  }
  if (exact.size() == 1) return exact[0];
  if (std::find(exact.begin(), exact.end(), axis) != exact.end()) return axis;
  return std::nullopt;
}

}  // namespace

std::optional<Shape> rebind_target(const Shape& data, const Dims& target, Int fixed_batch) {
  const auto batched =
      std::find_if(data.begin(), data.end(), [](const Extent& e) { return e.per_sample != 0; });
  if (batched == data.end() || batched->fixed != 0) return std::nullopt;
  const auto axis = static_cast<std::size_t>(batched - data.begin());
  const Dims written = dims_at(data, fixed_batch);
  const std::optional<Dims> full = resolved(written, target);
  if (!full) return std::nullopt;
  const Int before = product(written, 0, axis);
  const Int after = product(written, axis + 1, written.size());
  const Int joined = batched->per_sample;
  std::vector<std::size_t> found = candidates(*full, before, joined * after, fixed_batch);
  if (joined != 1) {
    for (const std::size_t j : candidates(*full, before * joined, after, fixed_batch)) {
      if (std::find(found.begin(), found.end(), j) == found.end()) found.push_back(j);
    }
  }
  const std::optional<std::size_t> at = decide(found, *full, fixed_batch, axis);
  if (!at || target[*at] <= 0) return std::nullopt;
  Shape rebound;
  for (const Int entry : target) rebound.push_back({entry, 0});
  rebound[*at] = {0, target[*at] / fixed_batch};
  return rebound;
}

}  // namespace agpcs::frontend
