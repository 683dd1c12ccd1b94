// SPDX-License-Identifier: Apache-2.0
// Resize and its relatives: every output is a weighted sum of a few inputs, along each axis, or
// around a point that is fed (GridSample).
#include "runtime/torch/ops/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <string_view>

namespace agpcs {
namespace {

using Ints = std::vector<std::int64_t>;

// Says how one axis is resized.
struct AxisPlan {
  std::int64_t axis = 0, in = 0, out = 0;
  double scale = 1, start = 0, end = 1;  // start, end: the crop as fractions
};

// What applies to all axes. Defaults differ by version.
struct Style {
  std::string mode, coordinates, nearest;
  double cubic = -0.75, outside_value = 0;
  bool exclude_outside = false, antialias = false;
};

double source_of(const AxisPlan& p, const Style& style, std::int64_t i) {
  const auto x = static_cast<double>(i), in = static_cast<double>(p.in),
             out = static_cast<double>(p.out);
  if (style.coordinates == "half_pixel") return (x + 0.5) / p.scale - 0.5;
  if (style.coordinates == "half_pixel_symmetric") {
    return in / 2 * (1 - out / (p.scale * in)) + (x + 0.5) / p.scale - 0.5;
  }
  if (style.coordinates == "pytorch_half_pixel") return p.out > 1 ? (x + 0.5) / p.scale - 0.5 : 0;
  if (style.coordinates == "align_corners") {
    const double resized = p.scale * in;  // not rounded, as in ONNX's reference and tests
    return resized == 1 ? 0 : x * (in - 1) / (resized - 1);
  }
  if (style.coordinates == "asymmetric") return x / p.scale;
  if (style.coordinates == "tf_half_pixel_for_nn") return (x + 0.5) / p.scale;
  if (style.coordinates == "tf_crop_and_resize") {
    if (p.out <= 1) return 0.5 * (p.start + p.end) * (in - 1);
    return p.start * (in - 1) + x * (p.end - p.start) * (in - 1) / (out - 1);
  }
  throw KernelError(fmt::format("coordinate_transformation_mode '{}'", style.coordinates));
}

std::int64_t nearest_to(double x, const std::string& rounding) {
  if (rounding == "floor") return static_cast<std::int64_t>(std::floor(x));
  if (rounding == "ceil") return static_cast<std::int64_t>(std::ceil(x));
  if (rounding == "round_prefer_ceil") return static_cast<std::int64_t>(std::floor(x + 0.5));
  if (rounding == "round_prefer_floor") return static_cast<std::int64_t>(std::ceil(x - 0.5));
  throw KernelError(fmt::format("nearest_mode '{}'", rounding));
}

// Returns the weights of Keys' cubic convolution with parameter `a` at distances 1 + r, r, 1 - r, 2
// - r.
std::array<double, 4> cubic_weights(double r, double a) {
  const auto near = [a](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
  const auto far = [a](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  return {far(1 + r), near(r), near(1 - r), far(2 - r)};
}

// A tap of one output: the index of a source element, and its weight.
struct Tap {
  std::int64_t index;
  double weight;
};

// Returns the weight of an element at distance `d` in a window as wide as the mode's.
double window(const Style& style, double d) {
  d = std::abs(d);
  if (style.mode == "linear") return std::max(0.0, 1 - d);
  const auto weights = cubic_weights(d < 1 ? d : d - 1, style.cubic);
  return d < 1 ? weights[1] : d < 2 ? weights[0] : 0;
}

// Returns taps of a window that is stretched over what one output stands for.
std::vector<Tap> stretched_taps(const AxisPlan& p, const Style& style, double x) {
  const double reach = style.mode == "linear" ? 1 : 2, stretch = 1 / p.scale;
  const auto first = static_cast<std::int64_t>(std::floor(-reach * stretch)) + 1;
  const auto base = static_cast<std::int64_t>(std::ceil(x)) - 1;
  std::vector<Tap> taps;
  double total = 0;
  for (std::int64_t k = first; k <= 1 - first; ++k) {
    taps.push_back({base + k, window(style, (static_cast<double>(base + k) - x) / stretch)});
    total += taps.back().weight;
  }
  for (Tap& tap : taps) tap.weight /= total;
  return taps;
}

std::vector<Tap> taps_of(const AxisPlan& p, const Style& style, std::int64_t i) {
  const double x = source_of(p, style, i);
  std::vector<Tap> taps;
  if (style.mode == "nearest") {
    taps = {{nearest_to(x, style.nearest), 1}};
  } else if (style.antialias && p.scale < 1) {
    taps = stretched_taps(p, style, x);
  } else {
    const double low = std::floor(x), r = x - low;
    const auto base = static_cast<std::int64_t>(low);
    if (style.mode == "linear") {
      taps = {{base, 1 - r}, {base + 1, r}};
    } else {
      const auto weights = cubic_weights(r, style.cubic);
      for (int k = 0; k < 4; ++k)
        taps.push_back({base - 1 + k, weights[static_cast<std::size_t>(k)]});
    }
  }
  double total = 0;
  for (Tap& tap : taps) {
    if (style.exclude_outside && (tap.index < 0 || tap.index >= p.in)) tap.weight = 0;
    total += tap.weight;
    tap.index = std::clamp<std::int64_t>(tap.index, 0, p.in - 1);
  }
  if (style.exclude_outside && total != 0) {
    for (Tap& tap : taps) tap.weight /= total;
  }
  return taps;
}

at::Tensor resize_axis(const at::Tensor& x, const AxisPlan& p, const Style& style) {
  std::vector<std::vector<Tap>> taps;
  for (std::int64_t i = 0; i < p.out; ++i) taps.push_back(taps_of(p, style, i));
  const std::size_t width = taps.empty() ? 0 : taps[0].size();
  Ints shape(static_cast<std::size_t>(x.dim()), 1);
  shape[static_cast<std::size_t>(p.axis)] = p.out;
  at::Tensor y;
  for (std::size_t k = 0; k < width; ++k) {
    Ints indices;
    std::vector<double> weights;
    for (const auto& of_output : taps) {
      indices.push_back(of_output[k].index);
      weights.push_back(of_output[k].weight);
    }
    at::Tensor part = x.index_select(p.axis, at::tensor(indices, at::kLong).to(x.device()));
    if (width > 1)
      part = part * at::tensor(weights, at::kDouble).to(x.device(), x.scalar_type()).view(shape);
    y = y.defined() ? y + part : part;
  }
  return y;
}

// Fills the part of the output outside the input, which a crop may reach, with a constant.
at::Tensor fill_outside(const at::Tensor& y, const AxisPlan& p, const Style& style) {
  std::vector<std::int64_t> outside;
  for (std::int64_t i = 0; i < p.out; ++i) {
    const double x = source_of(p, style, i);
    if (x < 0 || x > static_cast<double>(p.in - 1)) outside.push_back(i);
  }
  if (outside.empty()) return y;
  return y.index_fill(p.axis, at::tensor(outside, at::kLong).to(y.device()), style.outside_value);
}

Style style_of(const OpCall& call) {
  const bool old = call.op.version < 11;
  Style s;
  s.mode = call.op.string_attribute("mode", "nearest");
  s.coordinates =
      call.op.string_attribute("coordinate_transformation_mode", old ? "asymmetric" : "half_pixel");
  s.nearest = call.op.string_attribute("nearest_mode", old ? "floor" : "round_prefer_floor");
  s.cubic = call.op.float_attribute("cubic_coeff_a", -0.75);
  s.exclude_outside = call.op.int_attribute("exclude_outside", 0) != 0;
  s.outside_value = call.op.float_attribute("extrapolation_value", 0);
  if (s.mode != "nearest" && s.mode != "linear" && s.mode != "cubic")
    throw KernelError(fmt::format("mode '{}'", s.mode));
  s.antialias = call.op.int_attribute("antialias", 0) != 0;
  return s;
}

// Gives all axes one scale, so that the image gets no larger, or no smaller, than the sizes say.
void keep_aspect_ratio(const OpCall& call, std::vector<AxisPlan>& plans) {
  const std::string policy = call.op.string_attribute("keep_aspect_ratio_policy", "stretch");
  if (policy == "stretch" || plans.empty()) return;
  double scale = plans[0].scale;
  for (const AxisPlan& p : plans) {
    scale = policy == "not_larger" ? std::min(scale, p.scale) : std::max(scale, p.scale);
  }
  for (AxisPlan& p : plans) {
    p.scale = scale;
    p.out = static_cast<std::int64_t>(std::floor(scale * static_cast<double>(p.in) + 0.5));
  }
}

std::vector<AxisPlan> plans_of(const OpCall& call, const at::Tensor& x) {
  const bool old = call.op.version < 11;  // inputs (X, scales)
  const std::vector<double> scales =
      call.has_attribute("scales") || old ? call.numbers(1) : call.numbers(2);
  const Ints sizes = !old && call.has(3) ? call.ints(3) : Ints();
  const std::vector<double> roi = old ? std::vector<double>() : call.numbers(1);
  Ints axes = wrap_axes(call.op.ints_attribute("axes"), x.dim());
  if (axes.empty()) {
    axes.resize(static_cast<std::size_t>(x.dim()));
    std::iota(axes.begin(), axes.end(), 0);
  }
  if (std::max(scales.size(), sizes.size()) != axes.size()) {
    throw KernelError(fmt::format("{} scales and {} sizes for {} axes", scales.size(), sizes.size(),
                                  axes.size()));
  }
  std::vector<AxisPlan> plans;
  for (std::size_t k = 0; k < axes.size(); ++k) {
    AxisPlan p{axes[k], x.size(axes[k]), 0, 1, 0, 1};
    p.out = sizes.empty()
                ? static_cast<std::int64_t>(std::floor(static_cast<double>(p.in) * scales[k]))
                : sizes[k];
    p.scale = sizes.empty() ? scales[k] : static_cast<double>(p.out) / static_cast<double>(p.in);
    if (roi.size() == 2 * axes.size()) {
      p.start = roi[k];
      p.end = roi[k + axes.size()];
    }
    plans.push_back(p);
  }
  if (!sizes.empty()) keep_aspect_ratio(call, plans);
  return plans;
}

Tensors resize(const OpCall& call) {
  const Style style = style_of(call);
  at::Tensor y = call.input(0);
  const std::vector<AxisPlan> plans = plans_of(call, y);
  const bool crops = style.coordinates == "tf_crop_and_resize";
  for (const AxisPlan& p : plans) {
    if (p.in != p.out || p.scale != 1 || crops) y = resize_axis(y, p, style);
  }
  if (!crops) return {y};
  for (const AxisPlan& p : plans) y = fill_outside(y, p, style);
  return {y};
}

// Returns the number that ATen has for a word: its place in the list.
std::int64_t place_of(std::string_view word, std::initializer_list<std::string_view> words) {
  const auto* const found = std::find(words.begin(), words.end(), word);
  if (found == words.end()) throw KernelError(fmt::format("mode '{}'", word));
  return found - words.begin();
}

// The words of opset 16 mean what those of opset 20 mean.
std::string_view since_20(std::string_view mode) {
  return mode == "bilinear" ? "linear" : mode == "bicubic" ? "cubic" : mode;
}

// Moves the points of a grid to the nearest elements of `x`, the even one of two. ATen would take
// the outer one in three dimensions.
at::Tensor nearest_points(const at::Tensor& grid, const at::Tensor& x, bool align_corners) {
  std::vector<double> extents;  // of the axes as the grid has them: the last one first
  for (std::int64_t axis = x.dim() - 1; axis >= 2; --axis) {
    extents.push_back(static_cast<double>(x.size(axis)));
  }
  const at::Tensor size = at::tensor(extents, grid.options());
  if (align_corners) {
    const at::Tensor half = at::clamp_min(size - 1, 1) / 2;
    return at::round((grid + 1) * half) / half - 1;
  }
  const at::Tensor index = at::round(((grid + 1) * size - 1) / 2);
  return (2 * index + 1) / size - 1;
}

Tensors grid_sample(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const std::string mode = call.op.string_attribute("mode", "linear");
  const std::string padding = call.op.string_attribute("padding_mode", "zeros");
  if (x.dim() != 4 && x.dim() != 5) {
    throw KernelError(fmt::format("an input of {} axes, 4 and 5 are supported", x.dim()));
  }
  if (x.dim() == 5 && since_20(mode) == "cubic") {
    throw KernelError("mode 'cubic' of 3 spatial axes");
  }
  // ATen samples numbers of the grid's type.
  at::Tensor grid = call.input(1);
  const bool align_corners = call.op.int_attribute("align_corners", 0) != 0;
  if (x.dim() == 5 && mode == "nearest") grid = nearest_points(grid, x, align_corners);
  const at::ScalarType type = x.is_floating_point() ? x.scalar_type() : grid.scalar_type();
  const at::Tensor y = at::grid_sampler(
      x.to(type), grid.to(type), place_of(since_20(mode), {"linear", "nearest", "cubic"}),
      place_of(padding, {"zeros", "border", "reflection"}), align_corners);
  return {y.to(x.scalar_type())};
}

constexpr KernelEntry kResizeKernels[] = {
    {"GridSample", grid_sample},
    {"Resize", resize},
    {"Upsample", resize},
};

}  // namespace

std::span<const KernelEntry> resize_kernels() { return kResizeKernels; }

}  // namespace agpcs
