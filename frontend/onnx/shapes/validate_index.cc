// SPDX-License-Identifier: Apache-2.0
// Checks of operators that take parts of tensors by position: split, gather, scatter, labels.
#include "frontend/onnx/attributes.h"
#include "frontend/onnx/shapes/fold.h"
#include "frontend/onnx/shapes/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace agpcs::frontend {

Misfit check_split(const FitCase& c) {
  const onnx::AttributeProto* count = find_attribute(c.node, "num_outputs");
  if (count != nullptr && count->i() != c.node.output_size()) {
    return {fmt::format("num_outputs is {}, it has {} outputs", count->i(), c.node.output_size()),
            ""};
  }
  const auto parts = c.opset < 13 ? ints_of(c.node, "split") : c.ints(1, "split");
  if (c.input(0) == nullptr || !parts) return {};
  const Dims& x = c.input(0)->dims;
  const std::int64_t axis = normal_axis(int_of(c.node, "axis", 0), x.size());
  if (axis < 0) return {};  // check_axes() reports it
  const std::int64_t extent = x[static_cast<std::size_t>(axis)];
  std::int64_t left = extent;  // -1: the list is too short
  for (const std::int64_t part : *parts) left = part >= 0 && part <= left ? left - part : -1;
  if (left == 0 && parts->size() == static_cast<std::size_t>(c.node.output_size())) return {};
  return {fmt::format("the parts are {}, axis {} has {} and is split into {} outputs",
                      dims_text(*parts), axis, extent, c.node.output_size()),
          ""};
}

Misfit check_gather(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr || !c.input(1)->known) return {};
  const Dims& x = c.input(0)->dims;
  const std::int64_t axis = normal_axis(int_of(c.node, "axis", 0), x.size());
  if (axis < 0) return {};
  const std::int64_t extent = x[static_cast<std::size_t>(axis)];
  for (const std::int64_t index : c.input(1)->ints) {
    if (index >= -extent && index < extent) continue;
    return {fmt::format("it asks for index {} of axis {}, which has {}", index, axis, extent), ""};
  }
  return {};
}

/// GatherND: the first `batch_dims` axes are common, and the last axis of the indices counts axes
/// of the data that follow them.
Misfit check_gather_nd(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr) return {};
  const Dims &x = c.input(0)->dims, &indices = c.input(1)->dims;
  const auto most = static_cast<std::int64_t>(std::min(x.size(), indices.size())) - 1;
  const std::int64_t batch = int_of(c.node, "batch_dims", 0);
  if (batch < 0 || batch > most) {
    return {fmt::format("batch_dims is {}, which must be 0 to {}", batch, most), ""};
  }
  if (!std::equal(x.begin(), x.begin() + batch, indices.begin())) {
    return {fmt::format("the first {} axes of the data {} and of the indices {} differ", batch,
                        dims_text(x), dims_text(indices)),
            ""};
  }
  const std::int64_t rest = static_cast<std::int64_t>(x.size()) - batch;
  if (indices.back() >= 1 && indices.back() <= rest) return {};
  return {fmt::format("the indices are {}, whose last extent must be 1 to {}", dims_text(indices),
                      rest),
          ""};
}

/// GatherElements and ScatterElements: all operands have the same rank; an index stays within the
/// data's extents in every axis but its own. Updates have the extents of the indices.
Misfit check_elements(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr) return {};
  const Dims &x = c.input(0)->dims, &indices = c.input(1)->dims;
  if (indices.size() != x.size()) {
    return {fmt::format("the indices have {} axes, the data has {}", indices.size(), x.size()), ""};
  }
  const std::int64_t axis = normal_axis(int_of(c.node, "axis", 0), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (static_cast<std::int64_t>(i) == axis || indices[i] <= x[i]) continue;
    return {fmt::format("the indices have {} along axis {}, the data has {}", indices[i], i, x[i]),
            ""};
  }
  if (c.input(2) == nullptr || c.input(2)->dims == indices) return {};
  return {fmt::format("the updates have {}, the indices {}", dims_text(c.input(2)->dims),
                      dims_text(indices)),
          ""};
}

/// ScatterND: the last axis of the indices counts axes of the data, and the updates have the
/// indices' other extents, then the data's other ones.
Misfit check_scatter(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr || c.input(2) == nullptr) return {};
  const Dims &x = c.input(0)->dims, &indices = c.input(1)->dims;
  if (indices.empty() || indices.back() < 1 ||
      indices.back() > static_cast<std::int64_t>(x.size())) {
    return {fmt::format("the indices are {}, whose last extent must be 1 to {}", dims_text(indices),
                        x.size()),
            ""};
  }
  Dims wanted(indices.begin(), indices.end() - 1);
  wanted.insert(wanted.end(), x.begin() + indices.back(), x.end());
  if (c.input(2)->dims == wanted) return {};
  return {fmt::format("the updates have {}, the indices take {}", dims_text(c.input(2)->dims),
                      dims_text(wanted)),
          ""};
}

/// SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss: the labels have the extents of the
/// scores without the axis of classes; weights are one for each class.
Misfit check_labels(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr || c.input(0)->dims.size() < 2) return {};
  const Dims& scores = c.input(0)->dims;
  Dims wanted = scores;
  wanted.erase(wanted.begin() + 1);
  if (c.input(1)->dims != wanted) {
    return {fmt::format("the labels have {}, the scores take {}", dims_text(c.input(1)->dims),
                        dims_text(wanted)),
            ""};
  }
  if (c.input(2) == nullptr || c.input(2)->dims == Dims{scores[1]}) return {};
  return {fmt::format("the weights have {}, {} classes take [{}]", dims_text(c.input(2)->dims),
                      scores[1], scores[1]),
          ""};
}

/// Resize: a scale or a size for each axis, or for each of `axes`.
Misfit check_resize(const FitCase& c) {
  if (c.input(0) == nullptr) return {};
  const auto axes = ints_of(c.node, "axes");
  const auto count = static_cast<std::int64_t>(axes ? axes->size() : c.input(0)->dims.size());
  const std::size_t scales = c.opset < 11 ? 1 : 2;
  for (std::size_t i = scales; i < 4; ++i) {
    if (c.input(i) == nullptr || c.input(i)->dims == Dims{count} || c.input(i)->dims == Dims{0}) {
      continue;
    }
    return {fmt::format("'{}' has {}, {} axes take [{}]", c.name(i), dims_text(c.input(i)->dims),
                        count, count),
            ""};
  }
  return {};
}

}  // namespace agpcs::frontend
