// SPDX-License-Identifier: Apache-2.0
// What rules share, and the rules of operators that keep to their axes: elementwise ones,
// normalizations, softmax, reductions, pools.
#include "ir/graph/split/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace agpcs {

const Tensor* SplitAt::input(std::size_t i) const {
  if (i >= op.inputs.size() || op.inputs[i] == kNone) return nullptr;
  return &graph.tensor(op.inputs[i]);
}

const Tensor* SplitAt::output(std::size_t i) const {
  if (i >= op.outputs.size() || op.outputs[i] == kNone) return nullptr;
  return &graph.tensor(op.outputs[i]);
}

namespace {

/// Returns nullopt if the constant's bytes are not at hand.
template <typename T>
std::optional<std::vector<std::int64_t>> values_of(const Constant& constant, std::size_t elements) {
  if (constant.bytes.size() != elements * sizeof(T)) return std::nullopt;
  std::vector<T> values(elements);
  if (elements > 0) std::memcpy(values.data(), constant.bytes.data(), constant.bytes.size());
  return std::vector<std::int64_t>(values.begin(), values.end());
}

}  // namespace

std::optional<std::vector<std::int64_t>> SplitAt::ints(std::string_view name, std::size_t i) const {
  const auto attribute = op.attributes.find(std::string(name));
  if (attribute != op.attributes.end()) return op.ints_attribute(name);
  const Tensor* tensor = input(i);
  if (tensor == nullptr) return std::vector<std::int64_t>();
  const bool known = tensor->kind == TensorKind::kConstant && tensor->constant.per_sample.empty() &&
                     tensor->shape.size() <= 1;
  const auto elements = static_cast<std::size_t>(elements_at(tensor->shape, 0));
  if (!known) return std::nullopt;
  if (tensor->type == DType::kInt64) return values_of<std::int64_t>(tensor->constant, elements);
  if (tensor->type == DType::kInt32) return values_of<std::int32_t>(tensor->constant, elements);
  return std::nullopt;
}

int SplitAt::axis(std::int64_t otherwise, int rank) const {
  const auto axis = static_cast<int>(op.int_attribute("axis", otherwise));
  return axis < 0 ? axis + rank : axis;
}

OpSplit SplitAt::split(std::string name, std::int64_t units) const {
  OpSplit split;
  split.name = std::move(name);
  split.units = units;
  split.inputs.resize(op.inputs.size());
  split.outputs.resize(op.outputs.size());
  return split;
}

void SplitAt::add(OpSplit split) {
  const bool known =
      std::all_of(split.numbers.begin(), split.numbers.end(), [this](const MemberNumber& number) {
        return !number.attribute.empty() ||
               input(static_cast<std::size_t>(number.input))->kind == TensorKind::kConstant;
      });
  if (split.units >= 2 && known) found.push_back(std::move(split));
}

void SplitAt::add_sum(InputSet summands) {
  OpSplit sum = split("sum", 0);
  bool any = false;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!has_input(summands, i) || input(i) == nullptr) continue;
    if (!is_floating(input(i)->type)) return;
    sum.inputs[i] = partial(Placement::Kind::kSum);
    any = true;
  }
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    if (output(i) == nullptr) continue;
    if (is_floating(output(i)->type)) {
      sum.outputs[i] = partial(Placement::Kind::kSum);
    } else if (i == 0) {
      return;
    }
  }
  if (any) found.push_back(std::move(sum));
}

int rank_of(const Tensor* tensor) {
  return tensor == nullptr ? 0 : static_cast<int>(tensor->shape.size());
}

std::int64_t divisible(const Tensor* tensor, int axis) {
  if (axis < 0 || axis >= rank_of(tensor)) return 0;
  const Extent& extent = tensor->shape[static_cast<std::size_t>(axis)];
  return extent.per_sample != 0 ? 0 : extent.fixed;
}

std::string axis_name(int axis) { return fmt::format("axis {}", axis); }

namespace split_rules {
namespace {

bool every_axis(int) { return true; }

/// Marks as parts the outputs that have `units` elements at `axis`.
void mark_outputs(const SplitAt& at, OpSplit& split, int axis) {
  for (std::size_t i = 0; i < split.outputs.size(); ++i) {
    if (divisible(at.output(i), axis) == split.units) split.outputs[i] = part(axis);
  }
}

/// Returns the normalized axes, which attribute "axis" begins.
int first_normalized(const SplitAt& at) { return at.axis(-1, rank_of(at.input(0))); }

struct ReducedAxes {
  std::vector<int> axes;
  bool keep = true;
  bool has(int axis) const { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }
  /// Returns the output's axis that an axis of the input becomes.
  int output_axis(int axis) const {
    if (keep) return axis;
    return axis - static_cast<int>(std::count_if(axes.begin(), axes.end(),
                                                 [axis](int reduced) { return reduced < axis; }));
  }
};

std::optional<ReducedAxes> reduced_axes(const SplitAt& at) {
  const auto given = at.ints("axes", 1);
  if (!given) return std::nullopt;
  const int rank = rank_of(at.input(0));
  ReducedAxes reduced{{}, at.op.int_attribute("keepdims", 1) != 0};
  for (const std::int64_t axis : *given) {
    reduced.axes.push_back(static_cast<int>(axis < 0 ? axis + rank : axis));
  }
  if (given->empty() && at.op.int_attribute("noop_with_empty_axes", 0) == 0) {
    reduced.axes.resize(static_cast<std::size_t>(rank));
    std::iota(reduced.axes.begin(), reduced.axes.end(), 0);
  }
  return reduced;
}

/// Returns how the results of members that reduce their parts make the whole result; kCopy: they do
/// not.
Kind kind_of_reduction(const SplitAt& at) {
  const std::string& type = at.op.type;
  if (type == "ReduceSum" || type == "ReduceL1" || type == "ReduceSumSquare") return Kind::kSum;
  if (type == "ReduceMax" || type == "GlobalMaxPool") return Kind::kMax;
  if (type == "ReduceMin") return Kind::kMin;
  const bool means = type == "ReduceMean" || type == "GlobalAveragePool";
  return means && is_floating(at.input(0)->type) ? Kind::kMean : Kind::kCopy;
}

void add_reduction(SplitAt& at, const ReducedAxes& reduced) {
  for (int axis = 0; axis < rank_of(at.input(0)); ++axis) {
    OpSplit split = at.split(axis_name(axis), divisible(at.input(0), axis));
    split.inputs[0] = part(axis);
    if (!reduced.has(axis)) {
      split.outputs[0] = part(reduced.output_axis(axis));
    } else if (kind_of_reduction(at) != Kind::kCopy) {
      split.outputs[0] = partial(kind_of_reduction(at));
    } else {
      continue;
    }
    at.add(std::move(split));
  }
}

}  // namespace

void along_first(SplitAt& at, const AxisTest& may) {
  for (int axis = 0; axis < rank_of(at.input(0)); ++axis) {
    if (!may(axis)) continue;
    OpSplit split = at.split(axis_name(axis), divisible(at.input(0), axis));
    split.inputs[0] = part(axis);
    mark_outputs(at, split, axis);
    at.add(std::move(split));
  }
}

void along_output(SplitAt& at, const AxisTest& may) {
  const Tensor* out = at.output(0);
  for (int axis = 0; axis < rank_of(out); ++axis) {
    if (!may(axis)) continue;
    OpSplit split = at.split(axis_name(axis), divisible(out, axis));
    for (std::size_t i = 0; i < split.inputs.size(); ++i) {
      const int own = axis - rank_of(out) + rank_of(at.input(i));
      if (divisible(at.input(i), own) == split.units) split.inputs[i] = part(own);
    }
    mark_outputs(at, split, axis);
    at.add(std::move(split));
  }
}

void elementwise(SplitAt& at) { along_output(at, every_axis); }
void like_first(SplitAt& at) { along_first(at, every_axis); }

/// Scale, shift and statistics belong to channels. In training, a channel's statistics need all of
/// its elements.
void batch_norm(SplitAt& at) {
  OpSplit channels = at.split("channels", divisible(at.input(0), 1));
  channels.inputs[0] = channels.outputs[0] = part(1);
  for (std::size_t i = 1; i < channels.inputs.size(); ++i) channels.inputs[i] = part(0);
  for (std::size_t i = 1; i < channels.outputs.size(); ++i) channels.outputs[i] = part(0);
  at.add(std::move(channels));
  const bool trains = at.op.version >= 14 ? at.op.int_attribute("training_mode", 0) != 0
                                          : at.op.outputs.size() == 5;
  if (!trains) along_first(at, [](int axis) { return axis != 1; });
}

void instance_norm(SplitAt& at) {
  OpSplit channels = at.split("channels", divisible(at.input(0), 1));
  channels.inputs[0] = channels.outputs[0] = part(1);
  channels.inputs[1] = channels.inputs[2] = part(0);
  at.add(std::move(channels));
  along_first(at, [](int axis) { return axis == 0; });
}

/// Scale and shift have a number for each channel, or before version 21 for each group.
void group_norm(SplitAt& at) {
  const std::int64_t units = at.op.int_attribute("num_groups", 1);
  const std::int64_t channels = divisible(at.input(0), 1);
  if (units >= 1 && channels % units == 0) {
    OpSplit groups = at.split("groups", channels == 0 ? 0 : units);
    groups.inputs[0] = groups.outputs[0] = part(1, {channels / units});
    for (const std::size_t i : {1u, 2u}) {
      groups.inputs[i] = part(0, {divisible(at.input(i), 0) / units});
    }
    groups.numbers = {{"num_groups", kNone, kNone, 1}};
    at.add(std::move(groups));
  }
  along_first(at, [](int axis) { return axis == 0; });
}

void layer_norm(SplitAt& at) {
  along_output(at, [&](int axis) { return axis < first_normalized(at); });
}

void mean_variance_norm(SplitAt& at) {
  const std::vector<std::int64_t> axes = at.op.ints_attribute("axes", {0, 2, 3});
  const int rank = rank_of(at.input(0));
  along_first(at, [&](int axis) {
    return std::none_of(axes.begin(), axes.end(), [&](std::int64_t normalized) {
      return axis == (normalized < 0 ? normalized + rank : normalized);
    });
  });
}

void local_response_norm(SplitAt& at) {
  along_first(at, [](int axis) { return axis != 1; });
}

void along_other_axes(SplitAt& at) {
  along_first(at, [&](int axis) { return axis != first_normalized(at); });
}

/// Before version 13, all axes from attribute "axis" on are one.
void softmax(SplitAt& at) {
  if (at.op.version >= 13) return along_other_axes(at);
  along_first(at, [&](int axis) { return axis < at.axis(1, rank_of(at.input(0))); });
}

namespace {

/// Divides the axes of rows. A mean over labels cannot be divided, because a member does not know
/// how many labels count elsewhere.
void add_rows_of_loss(SplitAt& at) {
  const std::string reduction = at.op.string_attribute("reduction", "mean");
  if (reduction == "mean") return;
  for (int axis = 0; axis < rank_of(at.input(0)); ++axis) {
    if (axis == 1) continue;
    const int of_label = axis == 0 ? 0 : axis - 1;
    OpSplit split = at.split(axis_name(axis), divisible(at.input(0), axis));
    split.inputs[0] = part(axis);
    split.inputs[1] = part(of_label);
    split.outputs[0] = reduction == "none" ? part(of_label) : partial(Kind::kSum);
    if (split.outputs.size() > 1) split.outputs[1] = part(axis);
    at.add(std::move(split));
  }
}

}  // namespace

/// Each member knows the scores of its part of the vocabulary. The maximum and the sums of a row
/// are reduced while it computes, and then every member has the loss.
void cross_entropy(SplitAt& at) {
  OpSplit vocabulary = at.split("vocabulary", divisible(at.input(0), 1));
  vocabulary.inputs[0] = part(1);
  vocabulary.indices = 1;
  vocabulary.inside = {Kind::kMax, Kind::kSum};
  if (vocabulary.outputs.size() > 1) vocabulary.outputs[1] = part(1);
  at.add(std::move(vocabulary));
  add_rows_of_loss(at);
}

/// A label outside of a member's part counts as an ignored one. Smoothed labels count everywhere.
void negative_log_likelihood(SplitAt& at) {
  const bool smooths = at.op.float_attribute("label_smoothing", 0) != 0;
  if (!smooths && at.op.string_attribute("reduction", "mean") != "mean") {
    OpSplit vocabulary = at.split("vocabulary", divisible(at.input(0), 1));
    vocabulary.inputs[0] = part(1);
    if (vocabulary.inputs.size() > 2) vocabulary.inputs[2] = part(0);
    vocabulary.outputs[0] = partial(Kind::kSum);
    vocabulary.indices = 1;
    at.add(std::move(vocabulary));
  }
  add_rows_of_loss(at);
}

void reduction(SplitAt& at) {
  if (const auto reduced = reduced_axes(at)) add_reduction(at, *reduced);
}

void arg_extreme(SplitAt& at) {
  add_reduction(at, {{at.axis(0, rank_of(at.input(0)))}, at.op.int_attribute("keepdims", 1) != 0});
}

/// Sums or multiplies along the axis that input 1 names.
void cumulative(SplitAt& at) {
  const auto named = at.ints("", 1);
  if (!named || named->size() != 1) return;
  const std::int64_t along = (*named)[0] < 0 ? (*named)[0] + rank_of(at.input(0)) : (*named)[0];
  along_first(at, [along](int axis) { return axis != along; });
}

namespace {

void add_channels(SplitAt& at) {
  along_first(at, [](int axis) { return axis == 0; });
  OpSplit channels = at.split("channels", divisible(at.input(0), 1));
  channels.inputs[0] = channels.outputs[0] = part(1);
  at.add(std::move(channels));
}

}  // namespace

void pool(SplitAt& at) { add_channels(at); }

/// The indices of an output count elements of the whole input.
void max_pool(SplitAt& at) {
  if (at.output(1) == nullptr) add_channels(at);
}

void global_pool(SplitAt& at) {
  add_channels(at);
  for (int axis = 2; axis < rank_of(at.input(0)); ++axis) {
    OpSplit split = at.split(axis_name(axis), divisible(at.input(0), axis));
    split.inputs[0] = part(axis);
    split.outputs[0] = partial(kind_of_reduction(at));
    at.add(std::move(split));
  }
}

}  // namespace split_rules
}  // namespace agpcs
