// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/fold.h"

#include "frontend/onnx/attributes.h"

#include <algorithm>
#include <utility>

namespace agpcs::frontend {

const Dense* FoldCase::input(std::size_t i) const {
  if (!has_input(i) || !inputs[i]->known) return nullptr;
  // An empty tensor may have axes that are too long to walk along.
  const Dims& dims = inputs[i]->dims;
  const bool is_long =
      std::any_of(dims.begin(), dims.end(), [](std::int64_t dim) { return dim > kFoldLimit; });
  return is_long ? nullptr : inputs[i];
}

std::optional<std::vector<std::int64_t>> FoldCase::ints(std::size_t i,
                                                        const char* attribute) const {
  if (has_input(i)) {
    const Dense* values = input(i);
    if (values == nullptr || values->floating()) return std::nullopt;
    return values->ints;
  }
  return ints_of(node, attribute);
}

std::int64_t normal_axis(std::int64_t axis, std::size_t rank) {
  const auto signed_rank = static_cast<std::int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank) return -1;
  return axis < 0 ? axis + signed_rank : axis;
}

namespace {

/// Tells whether the type can hold the result and the number of elements matches the dims.
bool is_sound(const Dense& dense) {
  const std::optional<std::int64_t> count = element_count(dense.dims);
  if (!dense.known || !count || *count > kFoldLimit || !is_evaluated_type(dense.type)) return false;
  if (static_cast<std::size_t>(*count) != dense.size()) return false;
  return std::all_of(dense.ints.begin(), dense.ints.end(),
                     [&](std::int64_t value) { return fits(value, dense.type); });
}

}  // namespace

std::vector<Dense> fold(const FoldCase& c) {
  std::vector<Dense> outputs;
  if (c.node.op_type() == "Split") {
    outputs = fold_split(c);
  } else {
    Folder folder = find_elementwise(c.node.op_type());
    if (folder == nullptr) folder = find_shape_operator(c.node.op_type());
    std::optional<Dense> output = folder != nullptr ? folder(c) : std::nullopt;
    if (output) outputs.push_back(std::move(*output));
  }
  const bool sound = std::all_of(outputs.begin(), outputs.end(), is_sound);
  if (!sound || outputs.size() != static_cast<std::size_t>(c.node.output_size())) return {};
  return outputs;
}

}  // namespace agpcs::frontend
