// SPDX-License-Identifier: Apache-2.0
// Checks convolutions and poolings: filters, bias, lists with numbers per spatial axis, room for a
// window.
#include "frontend/onnx/attributes.h"
#include "frontend/onnx/shapes/validate.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace agpcs::frontend {
namespace {

Dims spatial(const Dims& dims) { return {dims.begin() + 2, dims.end()}; }

std::string plural(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// Checks that each list has its numbers for every spatial axis and that none is negative.
Misfit check_lists(const FitCase& c, std::size_t axes) {
  constexpr std::pair<const char*, std::size_t> kPerAxis[] = {
      {"kernel_shape", 1}, {"strides", 1},        {"dilations", 1},
      {"pads", 2},         {"output_padding", 1}, {"output_shape", 1}};
  for (const auto& [name, each] : kPerAxis) {
    const auto list = ints_of(c.node, name);
    if (!list) continue;
    // Older exporters write output_shape with batch and channels.
    const bool whole = std::string(name) == "output_shape" && list->size() == axes + 2;
    if (list->size() != each * axes && !whole) {
      return {fmt::format("{} has {}, {} spatial {} {}", name, plural(list->size(), "number"), axes,
                          axes == 1 ? "axis takes" : "axes take", each * axes),
              ""};
    }
    for (const std::int64_t value : *list) {
      if (value >= 0) continue;
      return {fmt::format("{} has {}, which must not be negative", name, value),
              each == 2 ? "crop the input with Slice" : ""};
    }
  }
  return {};
}

/// Checks that on every axis a window spans at most as many elements as there are, padding
/// included.
Misfit check_room(const FitCase& c, const Dims& extents, const Dims& kernel) {
  const std::string auto_pad = string_of(c.node, "auto_pad", "NOTSET");
  if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") return {};
  const std::size_t axes = extents.size();
  const Dims ones(axes, 1), strides = ints_of(c.node, "strides").value_or(ones);
  const Dims dilations = ints_of(c.node, "dilations").value_or(ones);
  Dims pads = ints_of(c.node, "pads").value_or(Dims(2 * axes, 0));
  if (auto_pad == "VALID") pads.assign(2 * axes, 0);
  const bool rounds_up = int_of(c.node, "ceil_mode", 0) != 0;
  for (std::size_t a = 0; a < axes; ++a) {
    const std::int64_t spans = dilations[a] * (kernel[a] - 1) + 1;
    const std::int64_t room = extents[a] + pads[a] + pads[axes + a] - spans;
    if (room >= 0 || (rounds_up && extents[a] > 0 && room > -strides[a])) continue;
    return {fmt::format("the window spans {} elements of axis {}, which has {}, padded by {} and "
                        "{}",
                        spans, a + 2, extents[a], pads[a], pads[axes + a]),
            "the images are too small for the model; feed larger ones, or pad them"};
  }
  return {};
}

Misfit check_channels(const FitCase& c, const Dims& x, const Dims& w, bool transposed) {
  const std::int64_t group = int_of(c.node, "group", 1);
  const std::int64_t wanted = transposed ? w[0] : w[1] * group;
  if (x[1] != wanted) {
    return {fmt::format("the input has {} channels, the filters take {}", x[1], wanted), ""};
  }
  if (w[0] % group != 0) {
    return {fmt::format("{} {} cannot be divided into {} groups", w[0],
                        transposed ? "channels" : "filters", group),
            ""};
  }
  const std::int64_t made = transposed ? w[1] * group : w[0];
  const Dense* bias = c.input(2);
  if (bias == nullptr || bias->dims == Dims{made}) return {};
  return {fmt::format("the bias '{}' has {}, {} filters take [{}]", c.name(2),
                      dims_text(bias->dims), made, made),
          ""};
}

}  // namespace

Misfit check_convolution(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr) return {};
  const Dims &x = c.input(0)->dims, &w = c.input(1)->dims;
  if (x.size() < 2 || w.size() != x.size()) {
    return {fmt::format("the input has rank {}, the filters have rank {}", x.size(), w.size()), ""};
  }
  const bool transposed = c.node.op_type() == "ConvTranspose";
  if (Misfit misfit = check_channels(c, x, w, transposed)) return misfit;
  if (Misfit misfit = check_lists(c, x.size() - 2)) return misfit;
  const Dims kernel = spatial(w), said = ints_of(c.node, "kernel_shape").value_or(kernel);
  if (said != kernel) {
    return {fmt::format("its kernel_shape is {}, its filters are {}", dims_text(said),
                        dims_text(kernel)),
            ""};
  }
  if (!transposed) return check_room(c, spatial(x), kernel);
  const bool known = !c.outputs.empty() && c.outputs[0].dims && c.outputs[0].dims->size() > 2;
  if (!known) return {};
  for (const std::int64_t extent : spatial(*c.outputs[0].dims)) {
    if (extent >= 1) continue;
    return {fmt::format("its output would have {}", dims_text(*c.outputs[0].dims)),
            "the padding takes away more than the window makes"};
  }
  return {};
}

Misfit check_pool(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(0)->dims.size() < 2) return {};
  const Dims extents = spatial(c.input(0)->dims);
  if (Misfit misfit = check_lists(c, extents.size())) return misfit;
  const auto kernel = ints_of(c.node, "kernel_shape");
  return kernel ? check_room(c, extents, *kernel) : Misfit{};
}

}  // namespace agpcs::frontend
