// SPDX-License-Identifier: Apache-2.0
// Checks Attention and RotaryEmbedding: heads, lengths, masks and tables of angles.
#include "frontend/onnx/attributes.h"
#include "frontend/onnx/shapes/validate.h"

#include <fmt/format.h>

namespace agpcs::frontend {
namespace {

/// An input of Attention: batch, heads, length and head size.
struct HeadDims {
  std::int64_t batch = 0, heads = 0, length = 0, size = 0;
};

/// Reads dims [batch, heads, length, size], or [batch, length, heads x size] with the number of
/// heads from `attribute`.
Misfit read_heads(const FitCase& c, std::size_t i, const char* attribute, HeadDims& out) {
  const Dims& dims = c.input(i)->dims;
  if (dims.size() == 4) {
    out = {dims[0], dims[1], dims[2], dims[3]};
    return {};
  }
  if (dims.size() != 3) return {fmt::format("'{}' must have 3 or 4 axes", c.name(i)), ""};
  const std::int64_t heads = int_of(c.node, attribute, 0);
  if (heads < 1) return {fmt::format("inputs of 3 axes need {}", attribute), ""};
  if (dims[2] % heads != 0) {
    return {fmt::format("{} elements of '{}' cannot be divided into {} heads", dims[2], c.name(i),
                        heads),
            ""};
  }
  out = {dims[0], heads, dims[1], dims[2] / heads};
  return {};
}

/// Checks that the mask can be broadcast to the scores; it may have fewer keys.
Misfit check_mask(const FitCase& c, const HeadDims& q, std::int64_t keys) {
  if (c.input(3) == nullptr) return {};
  const Dims& mask = c.input(3)->dims;
  const Dims scores = {q.batch, q.heads, q.length, keys};
  bool fits = mask.size() <= scores.size();
  for (std::size_t i = 0; fits && i < mask.size(); ++i) {
    const std::int64_t extent = mask[mask.size() - 1 - i], wanted = scores[scores.size() - 1 - i];
    fits = extent == 1 || extent == wanted || (i == 0 && extent < wanted);
  }
  if (fits) return {};
  return {fmt::format("the mask '{}' has {}, the scores have {}", c.name(3), dims_text(mask),
                      dims_text(scores)),
          ""};
}

/// Checks that past keys and values have batch, heads and head size of the new ones, and one
/// length.
Misfit check_past(const FitCase& c, const HeadDims& k, const HeadDims& v) {
  if (c.input(4) == nullptr) return {};
  const Dims &keys = c.input(4)->dims, &values = c.input(5)->dims;
  const std::int64_t length = keys.size() == 4 ? keys[2] : 0;
  if (keys == Dims{k.batch, k.heads, length, k.size} &&
      values == Dims{v.batch, v.heads, length, v.size}) {
    return {};
  }
  return {fmt::format("past keys have {} and past values {}, the new ones have [{},{},n,{}] and "
                      "[{},{},n,{}]",
                      dims_text(keys), dims_text(values), k.batch, k.heads, k.size, v.batch,
                      v.heads, v.size),
          ""};
}

}  // namespace

Misfit check_attention(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr || c.input(2) == nullptr) return {};
  HeadDims q, k, v;
  if (Misfit misfit = read_heads(c, 0, "q_num_heads", q)) return misfit;
  if (Misfit misfit = read_heads(c, 1, "kv_num_heads", k)) return misfit;
  if (Misfit misfit = read_heads(c, 2, "kv_num_heads", v)) return misfit;
  if (q.batch != k.batch || q.batch != v.batch) {
    return {fmt::format("batches of {}, {} and {} differ", q.batch, k.batch, v.batch), ""};
  }
  if (q.size != k.size) {
    return {fmt::format("queries have a head size of {}, keys of {}", q.size, k.size), ""};
  }
  if (k.heads != v.heads || k.length != v.length) {
    return {fmt::format("there are {} heads of {} keys and {} heads of {} values", k.heads,
                        k.length, v.heads, v.length),
            ""};
  }
  if (k.heads < 1 || q.heads % k.heads != 0) {
    return {fmt::format("{} heads of queries cannot share {} heads of keys", q.heads, k.heads), ""};
  }
  if ((c.input(4) == nullptr) != (c.input(5) == nullptr)) {
    return {"past keys and past values go together", ""};
  }
  if (Misfit misfit = check_past(c, k, v)) return misfit;
  return check_mask(c, q, k.length + (c.input(4) != nullptr ? c.input(4)->dims[2] : 0));
}

Misfit check_rotary(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr || c.input(2) == nullptr) return {};
  HeadDims x;
  if (Misfit misfit = read_heads(c, 0, "num_heads", x)) return misfit;
  std::int64_t width = int_of(c.node, "rotary_embedding_dim", 0);
  if (width == 0) width = x.size;
  if (width < 0 || width > x.size || width % 2 != 0) {
    return {fmt::format("it turns {} elements of a head, which has {}", width, x.size),
            "the number must be even and at most the head size"};
  }
  for (std::size_t i = 1; i <= 2; ++i) {
    const Dims& table = c.input(i)->dims;
    const std::size_t rank = c.input(3) != nullptr ? 2 : 3;  // by position, or by sample too
    if (table.size() == rank && table.back() == width / 2) {
      if (rank == 2 || (table[0] == x.batch && table[1] == x.length)) continue;
      return {fmt::format("'{}' has {}, {} samples of length {} take [{},{},{}]", c.name(i),
                          dims_text(table), x.batch, x.length, x.batch, x.length, width / 2),
              ""};
    }
    return {fmt::format("'{}' has {}, turning {} elements takes {} axes with {} angles in the last",
                        c.name(i), dims_text(table), width, rank, width / 2),
            c.input(3) != nullptr ? "" : "without position ids each sample has its own angles"};
  }
  return {};
}

}  // namespace agpcs::frontend
