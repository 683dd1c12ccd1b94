// SPDX-License-Identifier: Apache-2.0
// The rules of operators that move elements: views, pieces, joins, paddings.
#include "ir/graph/split/rules.h"

#include <algorithm>
#include <numeric>

namespace agpcs::split_rules {
namespace {

/// More bands than that on one axis are not offered: no model divides them.
constexpr std::int64_t kMostBands = 16;

/// Stands for the number of samples where extents are compared: a prime above any other extent, so
/// that products are equal only where they are equal for every number of samples.
constexpr std::int64_t kAnySamples = 1'000'003;

/// An axis of a view: its extent, and how many elements of the tensor one step along it passes
/// within its group (see `add_groups`).
struct ViewAxis {
  int axis = 0;
  std::int64_t extent = 1, stride = 1;
  std::int64_t reach() const { return extent * stride; }
};

void set_strides(std::vector<ViewAxis>& axes) {
  std::int64_t stride = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    axis->stride = stride;
    stride *= axis->extent;
  }
}

std::vector<std::int64_t> bands_of(const ViewAxis& axis, std::int64_t low, std::int64_t high) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(axis.reach() / high),
                                   low / axis.stride);
}

/// Adds the division of what axis `from` of the input and axis `to` of the output have in common:
/// the range of strides [low, high). Each axis has it as bands of units.
void add_common(SplitAt& at, const ViewAxis& from, const ViewAxis& to) {
  const std::int64_t low = std::max(from.stride, to.stride);
  const std::int64_t high = std::min(from.reach(), to.reach());
  const bool divides = high > low && high % low == 0 && low % from.stride == 0 &&
                       low % to.stride == 0 && from.reach() % high == 0 && to.reach() % high == 0;
  if (!divides || from.reach() / high > kMostBands || to.reach() / high > kMostBands) return;
  if (divisible(at.input(0), from.axis) == 0 || divisible(at.output(0), to.axis) == 0) return;
  OpSplit split = at.split(axis_name(from.axis), high / low);
  split.inputs[0] = part(from.axis, bands_of(from, low, high));
  split.outputs[0] = part(to.axis, bands_of(to, low, high));
  if (at.op.type == "Reshape") {
    const std::vector<std::int64_t>& bands = split.outputs[0].bands;
    const std::int64_t per_unit = std::accumulate(bands.begin(), bands.end(), std::int64_t{0});
    const bool named = at.op.attributes.count("shape") != 0;
    split.numbers = {{named ? "shape" : "", named ? kNone : 1, to.axis, per_unit}};
  }
  at.add(std::move(split));
}

std::vector<ViewAxis> view_axes(const Tensor* tensor) {
  std::vector<ViewAxis> axes;
  for (int axis = 0; axis < rank_of(tensor); ++axis) {
    axes.push_back({axis, tensor->shape[static_cast<std::size_t>(axis)].at(kAnySamples), 1});
  }
  return axes;
}

/// Takes axes from the front of both sides until they have equally many elements.
void add_groups(SplitAt& at, const std::vector<ViewAxis>& from, const std::vector<ViewAxis>& to) {
  for (std::size_t i = 0, o = 0; i < from.size() && o < to.size();) {
    std::vector<ViewAxis> ins = {from[i]}, outs = {to[o]};
    std::int64_t in = from[i++].extent, out = to[o++].extent;
    while (in != out) {
      if (in < out ? i == from.size() : o == to.size()) return;
      if (in < out) {
        in *= from[i].extent;
        ins.push_back(from[i++]);
      } else {
        out *= to[o].extent;
        outs.push_back(to[o++]);
      }
    }
    set_strides(ins);
    set_strides(outs);
    for (const ViewAxis& a : ins) {
      for (const ViewAxis& b : outs) add_common(at, a, b);
    }
  }
}

}  // namespace

/// Divides what one axis before and one axis after have in common: whole axes that stay, heads that
/// an axis is made of, and the bands of an axis into which others were joined.
void reshape(SplitAt& at) {
  const Tensor *in = at.input(0), *out = at.output(0);
  if (elements_at(in->shape, 1) == 0) return;
  add_groups(at, view_axes(in), view_axes(out));
}

void transpose(SplitAt& at) {
  const int rank = rank_of(at.input(0));
  std::vector<std::int64_t> order = at.op.ints_attribute("perm");
  if (order.empty()) {
    order.resize(static_cast<std::size_t>(rank));
    std::iota(order.rbegin(), order.rend(), 0);
  }
  for (int axis = 0; axis < rank; ++axis) {
    const auto from = static_cast<int>(order[static_cast<std::size_t>(axis)]);
    OpSplit split = at.split(axis_name(from), divisible(at.input(0), from));
    split.inputs[0] = part(from);
    split.outputs[0] = part(axis);
    at.add(std::move(split));
  }
}

namespace {

/// Returns how many units the pieces of one axis may be divided into together: each has a whole
/// number of elements per unit.
std::int64_t common_units(const std::vector<std::int64_t>& extents) {
  std::int64_t units = 0;
  for (const std::int64_t extent : extents) units = std::gcd(units, extent);
  return static_cast<std::int64_t>(extents.size()) > kMostBands ||
                 std::find(extents.begin(), extents.end(), 0) != extents.end()
             ? 0
             : units;
}

std::vector<std::int64_t> extents_of(const SplitAt& at, const std::vector<TensorId>& ids,
                                     int axis) {
  std::vector<std::int64_t> extents;
  for (const TensorId id : ids) {
    extents.push_back(id == kNone ? 0 : divisible(&at.graph.tensor(id), axis));
  }
  return extents;
}

}  // namespace

void concat(SplitAt& at) {
  const int along = at.axis(0, rank_of(at.output(0)));
  for (int axis = 0; axis < rank_of(at.output(0)); ++axis) {
    if (axis == along) continue;
    OpSplit split = at.split(axis_name(axis), divisible(at.output(0), axis));
    std::fill(split.inputs.begin(), split.inputs.end(), part(axis));
    split.outputs[0] = part(axis);
    at.add(std::move(split));
  }
  std::vector<std::int64_t> bands = extents_of(at, at.op.inputs, along);
  OpSplit split = at.split("bands", common_units(bands));
  if (split.units < 2) return;
  for (std::size_t i = 0; i < bands.size(); ++i) {
    bands[i] /= split.units;
    split.inputs[i] = part(along, {bands[i]});
  }
  split.outputs[0] = part(along, bands);
  at.add(std::move(split));
}

void split(SplitAt& at) {
  const int along = at.axis(0, rank_of(at.input(0)));
  for (int axis = 0; axis < rank_of(at.input(0)); ++axis) {
    if (axis == along) continue;
    OpSplit split = at.split(axis_name(axis), divisible(at.input(0), axis));
    split.inputs[0] = part(axis);
    std::fill(split.outputs.begin(), split.outputs.end(), part(axis));
    at.add(std::move(split));
  }
  std::vector<std::int64_t> bands = extents_of(at, at.op.outputs, along);
  OpSplit split = at.split("bands", common_units(bands));
  if (split.units < 2) return;
  const bool named = at.op.attributes.count("split") != 0;
  const bool sized = named || at.input(1) != nullptr;
  const bool equal = std::all_of(bands.begin(), bands.end(),
                                 [&](std::int64_t extent) { return extent == bands[0]; });
  if (!sized && !equal) return;  // the last piece is what is left: a member's would be another
  for (std::size_t i = 0; i < bands.size(); ++i) {
    bands[i] /= split.units;
    split.outputs[i] = part(along, {bands[i]});
    if (!sized) continue;
    split.numbers.push_back(
        {named ? "split" : "", named ? kNone : 1, static_cast<int>(i), bands[i]});
  }
  split.inputs[0] = part(along, bands);
  at.add(std::move(split));
}

namespace {

/// Returns whether a slice takes all of an axis of the first input, as it is.
bool is_whole(const SplitAt& at, int axis, std::int64_t start, std::int64_t end,
              std::int64_t step) {
  return start == 0 && step == 1 && end >= divisible(at.input(0), axis);
}

}  // namespace

void slice(SplitAt& at) {
  const auto starts = at.ints("starts", 1), ends = at.ints("ends", 2), steps = at.ints("", 4);
  auto axes = at.ints("axes", 3);
  if (!starts || !ends || !axes || !steps) return;
  const int rank = rank_of(at.input(0));
  if (axes->empty()) {
    axes->resize(starts->size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  along_first(at, [&](int axis) {
    for (std::size_t i = 0; i < axes->size(); ++i) {
      const std::int64_t sliced = (*axes)[i] < 0 ? (*axes)[i] + rank : (*axes)[i];
      const std::int64_t step = steps->empty() ? 1 : (*steps)[i];
      if (sliced == axis && !is_whole(at, axis, (*starts)[i], (*ends)[i], step)) return false;
    }
    return true;
  });
  at.add_sum(kFirst);
}

void pad(SplitAt& at) {
  const auto pads = at.ints(at.op.attributes.count("paddings") != 0 ? "paddings" : "pads", 1);
  const auto axes = at.ints("", 3);
  if (!pads || !axes) return;
  const int rank = rank_of(at.input(0));
  const std::size_t padded = axes->empty() ? static_cast<std::size_t>(rank) : axes->size();
  if (pads->size() != 2 * padded) return;
  along_first(at, [&](int axis) {
    for (std::size_t i = 0; i < padded; ++i) {
      const std::int64_t of = axes->empty() ? static_cast<std::int64_t>(i) : (*axes)[i];
      if ((of < 0 ? of + rank : of) == axis && ((*pads)[i] != 0 || (*pads)[i + padded] != 0)) {
        return false;
      }
    }
    return true;
  });
  const bool constant = at.op.string_attribute("mode", "constant") == "constant";
  const bool zero = at.input(2) == nullptr && at.op.float_attribute("value", 0) == 0;
  if (!constant || zero) at.add_sum(kFirst);
}

/// An axis that is made by repetition is divided, too: then the input is a copy.
void expand(SplitAt& at) {
  const int rank = rank_of(at.output(0)), own = rank_of(at.input(0));
  const auto named = static_cast<int>(divisible(at.input(1), 0));
  for (int axis = 0; axis < rank; ++axis) {
    OpSplit split = at.split(axis_name(axis), divisible(at.output(0), axis));
    const int of_input = axis - rank + own, of_shape = axis - rank + named;
    if (divisible(at.input(0), of_input) == split.units) split.inputs[0] = part(of_input);
    split.outputs[0] = part(axis);
    if (of_shape >= 0) split.numbers = {{"", 1, of_shape, 1}};
    at.add(std::move(split));
  }
}

namespace {

bool keeps_extent(const SplitAt& at, int axis) {
  return divisible(at.input(0), axis) == divisible(at.output(0), axis);
}

}  // namespace

void tile(SplitAt& at) {
  along_first(at, [&](int axis) { return keeps_extent(at, axis); });
}

/// Divides axes that keep their extents.
void resize(SplitAt& at) {
  const std::string policy = at.op.string_attribute("keep_aspect_ratio_policy", "stretch");
  const std::string mode = at.op.string_attribute("coordinate_transformation_mode", "half_pixel");
  if (policy == "stretch" && mode != "tf_crop_and_resize") {
    const std::vector<std::int64_t> axes = at.op.ints_attribute("axes");
    const std::size_t before = at.found.size();
    along_first(at, [&](int axis) { return keeps_extent(at, axis); });
    for (std::size_t i = before; i < at.found.size() && at.input(3) != nullptr; ++i) {
      const std::int64_t axis = at.found[i].inputs[0].axis;
      const auto named = std::find_if(axes.begin(), axes.end(), [&](std::int64_t one) {
        return axis == (one < 0 ? one + rank_of(at.input(0)) : one);
      });
      if (!axes.empty() && named == axes.end()) continue;
      const auto element = axes.empty() ? axis : named - axes.begin();
      at.found[i].numbers = {{"", 3, static_cast<int>(element), 1}};
    }
  }
  if (mode != "tf_crop_and_resize") at.add_sum(kFirst);  // what it crops to may be a constant
}

void triangle(SplitAt& at) {
  along_first(at, [&](int axis) { return axis < rank_of(at.input(0)) - 2; });
}

namespace {

/// Adds the splits of DepthToSpace (`deep` is the input) and SpaceToDepth: batch, the channels of
/// the wide tensor, and its bands of rows and columns.
void add_depth(SplitAt& at, bool to_space) {
  const std::int64_t size = at.op.int_attribute("blocksize", 1);
  const bool channels_first = at.op.string_attribute("mode", "DCR") == "CRD";
  const auto add = [&](int axis, std::int64_t units, Placement deep, Placement wide) {
    OpSplit split = at.split(axis_name(axis), units);
    split.inputs[0] = to_space ? deep : wide;
    split.outputs[0] = to_space ? wide : deep;
    at.add(std::move(split));
  };
  const Tensor* deep = to_space ? at.input(0) : at.output(0);
  const Tensor* wide = to_space ? at.output(0) : at.input(0);
  add(0, divisible(deep, 0), part(0), part(0));
  if (channels_first) {
    add(1, divisible(wide, 1), part(1, {size * size}), part(1));
  } else if (size * size <= kMostBands) {
    const std::vector<std::int64_t> bands(static_cast<std::size_t>(size * size), 1);
    add(1, divisible(wide, 1), part(1, bands), part(1));
  }
  for (const int axis : {2, 3}) add(axis, divisible(deep, axis), part(axis), part(axis, {size}));
}

}  // namespace

void depth_to_space(SplitAt& at) { add_depth(at, true); }
void space_to_depth(SplitAt& at) { add_depth(at, false); }

void constant_of_shape(SplitAt& at) {
  for (int axis = 0; axis < rank_of(at.output(0)); ++axis) {
    OpSplit split = at.split(axis_name(axis), divisible(at.output(0), axis));
    split.outputs[0] = part(axis);
    split.numbers = {{"", 0, axis, 1}};
    at.add(std::move(split));
  }
}

}  // namespace agpcs::split_rules
