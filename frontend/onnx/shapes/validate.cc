// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/validate.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/shapes/fold.h"
#include "frontend/onnx/shapes/in_samples.h"
#include "frontend/onnx/tensor.h"

#include <agpcs/types.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

namespace agpcs::frontend {
namespace {

/// Tells whether `from` broadcasts to `to`; axes are matched from the last one.
bool is_broadcast_to(const Dims& from, const Dims& to) {
  if (from.size() > to.size()) return false;
  return std::equal(from.rbegin(), from.rend(), to.rbegin(),
                    [](std::int64_t a, std::int64_t b) { return a == 1 || a == b; });
}

/// Checks that inputs [first, last] are vectors of `length`, one element for each of `what`.
Misfit check_lengths(const FitCase& c, std::size_t first, std::size_t last, std::int64_t length,
                     std::string_view what) {
  for (std::size_t i = first; i <= last; ++i) {
    if (c.input(i) == nullptr || c.input(i)->dims == Dims{length}) continue;
    return {fmt::format("'{}' has {}, {} {} take [{}]", c.name(i), dims_text(c.input(i)->dims),
                        length, what, length),
            ""};
  }
  return {};
}

Misfit check_broadcast(const FitCase& c, std::size_t first, std::size_t last, const Dims& to) {
  for (std::size_t i = first; i <= last; ++i) {
    if (c.input(i) == nullptr || is_broadcast_to(c.input(i)->dims, to)) continue;
    return {fmt::format("'{}' has {}, which cannot be broadcast to {}", c.name(i),
                        dims_text(c.input(i)->dims), dims_text(to)),
            ""};
  }
  return {};
}

Misfit check_gemm(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr) return {};
  const Dims &a = c.input(0)->dims, &b = c.input(1)->dims;
  if (a.size() != 2 || b.size() != 2) return {};  // ONNX's rule reports it
  const std::size_t row = int_of(c.node, "transA", 0) != 0 ? 1 : 0;
  const std::size_t column = int_of(c.node, "transB", 0) != 0 ? 0 : 1;
  const std::int64_t left = a[1 - row], right = b[1 - column];
  if (left != right) return {fmt::format("the inner extents are {} and {}", left, right), ""};
  return check_broadcast(c, 2, 2, {a[row], b[column]});
}

Misfit check_batch_norm(const FitCase& c) {
  if (c.input(0) == nullptr || int_of(c.node, "spatial", 1) == 0) return {};
  const Dims& x = c.input(0)->dims;
  return check_lengths(c, 1, 4, x.size() < 2 ? 1 : x[1], "channels");
}

Misfit check_instance_norm(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(0)->dims.size() < 2) return {};
  return check_lengths(c, 1, 2, c.input(0)->dims[1], "channels");
}

/// Version 18 has a scale per group, version 21 one per channel. PyTorch's exporter writes a scale
/// per channel for both.
Misfit check_group_norm(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(0)->dims.size() < 2) return {};
  const std::int64_t channels = c.input(0)->dims[1], groups = int_of(c.node, "num_groups", 1);
  if (groups < 1 || channels % groups != 0) {
    return {fmt::format("{} channels cannot be divided into {} groups", channels, groups), ""};
  }
  const bool by_group = c.opset < 21 && c.input(1) != nullptr && c.input(1)->dims == Dims{groups};
  return check_lengths(c, 1, 2, by_group ? groups : channels, by_group ? "groups" : "channels");
}

Misfit check_layer_norm(const FitCase& c) {
  return c.input(0) == nullptr ? Misfit{} : check_broadcast(c, 1, 2, c.input(0)->dims);
}

/// ONNX gives the output the type of the data and that of the scale.
Misfit check_rms_norm(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(1) == nullptr || c.input(0)->type == c.input(1)->type) {
    return check_layer_norm(c);
  }
  return {fmt::format("the data is {}, the scale {}", onnx_type_name(c.input(0)->type),
                      onnx_type_name(c.input(1)->type)),
          ""};
}

/// Before version 7 there was one slope per channel.
Misfit check_slopes(const FitCase& c) {
  if (c.input(0) == nullptr || c.opset < 7) return {};
  return check_broadcast(c, 1, 1, c.input(0)->dims);
}

Misfit check_reshape(const FitCase& c) {
  if (c.input(0) == nullptr || c.outputs.empty() || !c.outputs[0].dims) return {};
  const auto before = element_count(c.input(0)->dims), after = element_count(*c.outputs[0].dims);
  if (!before || !after || *before == *after) return {};
  return {fmt::format("{} elements do not become {}", *before, *after), ""};
}

Misfit check_transpose(const FitCase& c) {
  const auto perm = ints_of(c.node, "perm");
  if (c.input(0) == nullptr || !perm) return {};
  Dims sorted = *perm, wanted(c.input(0)->dims.size());
  std::sort(sorted.begin(), sorted.end());
  std::iota(wanted.begin(), wanted.end(), 0);
  if (sorted == wanted) return {};
  return {fmt::format("perm is {}, which is no order of {} axes", dims_text(*perm), wanted.size()),
          ""};
}

Misfit check_slice(const FitCase& c) {
  const auto steps = c.opset >= 10 ? c.ints(4, "steps") : std::nullopt;
  if (!steps || std::find(steps->begin(), steps->end(), 0) == steps->end()) return {};
  return {fmt::format("steps is {}, a step of 0 leads nowhere", dims_text(*steps)), ""};
}

/// Checks that blocks divide the channels (DepthToSpace) or the images (SpaceToDepth).
Misfit check_blocks(const FitCase& c) {
  if (c.input(0) == nullptr || c.input(0)->dims.size() != 4) return {};
  const Dims& x = c.input(0)->dims;
  const std::int64_t block = int_of(c.node, "blocksize", 1);
  const bool to_space = c.node.op_type() == "DepthToSpace";
  if (to_space ? x[1] % (block * block) == 0 : x[2] % block == 0 && x[3] % block == 0) return {};
  return {fmt::format("{} cannot be divided into blocks of {} x {}",
                      to_space ? fmt::format("{} channels", x[1])
                               : fmt::format("images of {} x {}", x[2], x[3]),
                      block, block),
          ""};
}

/// Checks that a reflection takes fewer elements than the axis has.
Misfit check_pad(const FitCase& c) {
  const auto pads = c.opset < 11 ? ints_of(c.node, "pads") : c.ints(1, "pads");
  if (c.input(0) == nullptr || !pads || string_of(c.node, "mode", "constant") != "reflect") {
    return {};
  }
  const Dims& x = c.input(0)->dims;
  if (pads->size() != 2 * x.size()) return {};  // ONNX's rule reports it, or input 3 has the axes
  for (std::size_t i = 0; i < pads->size(); ++i) {
    const std::size_t axis = i % x.size();
    if ((*pads)[i] <= 0 || (*pads)[i] < x[axis]) continue;
    return {
        fmt::format("it reflects {} elements of axis {}, which has {}", (*pads)[i], axis, x[axis]),
        "a reflection takes at most one less than the axis has"};
  }
  return {};
}

Misfit check_dropout(const FitCase& c) {
  const onnx::AttributeProto* attribute = find_attribute(c.node, "ratio");
  double ratio = attribute != nullptr ? static_cast<double>(attribute->f()) : 0.5;
  const Dense* given = c.input(1);
  if (given != nullptr && given->known && given->floating() && given->size() == 1) {
    ratio = given->floats[0];
  }
  if (ratio >= 0 && ratio < 1) return {};
  return {fmt::format("its ratio is {}, which must be at least 0 and less than 1", ratio), ""};
}

/// Checks that each label has one extent, or 1, in all operands. Axes under an ellipsis have no
/// label.
Misfit check_einsum(const FitCase& c) {
  std::string equation = string_of(c.node, "equation", "");
  std::erase(equation, ' ');
  std::map<char, std::int64_t> extents;
  std::size_t begin = 0;
  const std::string terms = equation.substr(0, equation.find("->"));
  for (std::size_t i = 0; c.input(i) != nullptr && begin <= terms.size(); ++i) {
    const std::string term = terms.substr(begin, terms.find(',', begin) - begin);
    begin += term.size() + 1;
    const Dims& dims = c.input(i)->dims;
    const std::size_t dots = term.find("...");
    const std::size_t labels = dots == std::string::npos ? term.size() : term.size() - 3;
    if (labels > dims.size()) continue;  // ONNX's rule reports it
    for (std::size_t at = 0; at < term.size(); ++at) {
      if (term[at] == '.') continue;
      const std::int64_t extent = dims[at < dots ? at : dims.size() - (term.size() - at)];
      std::int64_t& known = extents.emplace(term[at], extent).first->second;
      if (known == 1) known = extent;
      if (extent == known || extent == 1) continue;
      return {fmt::format("'{}' of equation '{}' is {} and {}", term[at], equation, known, extent),
              ""};
    }
  }
  return {};
}

Misfit check_size(const FitCase& c) {
  const std::int64_t size = int_of(c.node, "size", 1);
  return size >= 1 ? Misfit{}
                   : Misfit{fmt::format("its size is {}, which must be at least 1", size), ""};
}

Misfit check_norm_power(const FitCase& c) {
  const std::int64_t p = int_of(c.node, "p", 2);
  return p == 1 || p == 2 ? Misfit{} : Misfit{fmt::format("p is {}, not 1 or 2", p), ""};
}

struct FitRule {
  std::string_view type;
  Misfit (*check)(const FitCase&);
};
constexpr FitRule kRules[] = {
    {"Attention", check_attention},
    {"AveragePool", check_pool},
    {"BatchNormalization", check_batch_norm},
    {"Conv", check_convolution},
    {"ConvTranspose", check_convolution},
    {"DepthToSpace", check_blocks},
    {"Dropout", check_dropout},
    {"Einsum", check_einsum},
    {"GRU", check_recurrent},
    {"Gather", check_gather},
    {"GatherElements", check_elements},
    {"GatherND", check_gather_nd},
    {"Gemm", check_gemm},
    {"GroupNormalization", check_group_norm},
    {"InstanceNormalization", check_instance_norm},
    {"LRN", check_size},
    {"LSTM", check_recurrent},
    {"LayerNormalization", check_layer_norm},
    {"LpNormalization", check_norm_power},
    {"LpPool", check_pool},
    {"MaxPool", check_pool},
    {"NegativeLogLikelihoodLoss", check_labels},
    {"PRelu", check_slopes},
    {"Pad", check_pad},
    {"RMSNormalization", check_rms_norm},
    {"RNN", check_recurrent},
    {"Reshape", check_reshape},
    {"Resize", check_resize},
    {"RotaryEmbedding", check_rotary},
    {"ScatterElements", check_elements},
    {"ScatterND", check_scatter},
    {"Slice", check_slice},
    {"SoftmaxCrossEntropyLoss", check_labels},
    {"SpaceToDepth", check_blocks},
    {"Split", check_split},
    {"Transpose", check_transpose},
};

/// Operators whose attribute `axis` counts along input 0.
constexpr std::string_view kAxis[] = {"ArgMax",           "ArgMin",          "Concat",
                                      "Gather",           "GatherElements",  "Hardmax",
                                      "LogSoftmax",       "LpNormalization", "LayerNormalization",
                                      "RMSNormalization", "ScatterElements", "Scatter",
                                      "Softmax",          "Split",           "TopK"};
constexpr std::size_t kNoInput = 99;  // greater than the number of inputs of any node
/// Operators with axes of input 0 in attribute `axes` or in the input with this number.
constexpr std::pair<std::string_view, std::size_t> kAxes[] = {
    {"MeanVarianceNormalization", kNoInput},
    {"ReduceL1", 1},
    {"ReduceL2", 1},
    {"ReduceLogSum", 1},
    {"ReduceLogSumExp", 1},
    {"ReduceMax", 1},
    {"ReduceMean", 1},
    {"ReduceMin", 1},
    {"ReduceProd", 1},
    {"ReduceSum", 1},
    {"ReduceSumSquare", 1},
    {"Slice", 3},
    {"Squeeze", 1},
};

Misfit out_of_range(const char* name, std::int64_t axis, std::size_t rank) {
  return {fmt::format("{} is {}, the input has {} axes", name, axis, rank), ""};
}

Misfit check_axes(const FitCase& c) {
  if (c.input(0) == nullptr) return {};
  const std::string& type = c.node.op_type();
  const std::size_t rank = std::max<std::size_t>(c.input(0)->dims.size(), 1);
  const onnx::AttributeProto* axis = find_attribute(c.node, "axis");
  if (axis != nullptr && std::find(std::begin(kAxis), std::end(kAxis), type) != std::end(kAxis) &&
      normal_axis(axis->i(), rank) < 0) {
    return out_of_range("axis", axis->i(), c.input(0)->dims.size());
  }
  for (const auto& [with_axes, input] : kAxes) {
    if (with_axes != type) continue;
    Dims seen;
    for (const std::int64_t each : c.ints(input, "axes").value_or(Dims())) {
      const std::int64_t normal = normal_axis(each, rank);
      if (normal < 0) return out_of_range("axes", each, c.input(0)->dims.size());
      if (std::find(seen.begin(), seen.end(), normal) != seen.end()) {
        return {fmt::format("axes has axis {} twice", normal), ""};
      }
      seen.push_back(normal);
    }
  }
  return {};
}

}  // namespace

std::optional<Dims> FitCase::ints(std::size_t i, const char* attribute) const {
  return FoldCase{node, opset, inputs}.ints(i, attribute);
}

Misfit check_fit(const FitCase& c) {
  if (Misfit misfit = check_axes(c)) return misfit;
  for (const FitRule& rule : kRules) {
    if (rule.type == c.node.op_type()) return rule.check(c);
  }
  return {};
}

std::string dims_text(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ",")); }

std::string probed_text(const Probed& value) {
  const std::optional<DType> type = dtype_of(value.type());
  std::string text = type ? std::string(name_of(*type)) : onnx_type_name(value.type());
  text += '[';
  const std::optional<Shape> shape = fit_shape(value);
  for (std::size_t i = 0; shape && i < shape->size(); ++i) {
    text += (i == 0 ? "" : ",") + extent_text((*shape)[i]);
  }
  text += ']';
  constexpr std::size_t kFew = 8;
  if (!value.known() || value[0].floating() || value[0].ints.size() > kFew) return text;
  std::string elements;
  for (std::size_t i = 0; i < value[0].ints.size(); ++i) {
    const auto fit = value.uniform() ? std::optional(Extent{value[0].ints[i], 0})
                     : value[1].ints.size() != value[0].ints.size() ||
                             value[2].ints.size() != value[0].ints.size()
                         ? std::nullopt
                         : fit_extent({value[0].ints[i], value[1].ints[i], value[2].ints[i]});
    if (!fit) return text;
    elements += (i == 0 ? "" : ",") + extent_text(*fit);
  }
  return text + " {" + elements + "}";
}

}  // namespace agpcs::frontend
