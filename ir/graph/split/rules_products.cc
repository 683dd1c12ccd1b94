// SPDX-License-Identifier: Apache-2.0
// The rules of products: matrices, sums over indices, convolutions, attention.
#include "ir/graph/split/rules.h"

#include <algorithm>
#include <string>

namespace agpcs::split_rules {

namespace {

/// The axes of a matrix product, each as an axis of the left operand, of the right one and of the
/// output; kNone: a tensor lacks it.
struct ProductAxis {
  std::string name;
  int left = kNone, right = kNone, out = kNone;
};

std::vector<ProductAxis> axes_of_product(const SplitAt& at) {
  const int left = rank_of(at.input(0)), right = rank_of(at.input(1));
  const int out = rank_of(at.output(0));
  const int columns = right >= 2 ? 1 : 0, rows = left >= 2 ? 1 : 0;
  std::vector<ProductAxis> axes;
  if (columns != 0) axes.push_back({"columns", kNone, right - 1, out - 1});
  axes.push_back({"rows", left - 1, right - 1 - columns, kNone});
  const int batch = out - rows - columns;
  for (int axis = 0; axis < batch; ++axis) {
    axes.push_back({axis_name(axis), axis - batch + left - 1 - rows,
                    axis - batch + right - 1 - columns, axis});
  }
  if (rows != 0) axes.push_back({axis_name(batch), left - 2, kNone, batch});
  return axes;
}

}  // namespace

/// Columns and rows are the right operand's, which is a layer's weight: column-parallel gives parts
/// of the output, row-parallel summands of it.
void matmul(SplitAt& at) {
  for (const ProductAxis& axis : axes_of_product(at)) {
    const std::int64_t of_left = divisible(at.input(0), axis.left);
    const std::int64_t of_right = divisible(at.input(1), axis.right);
    const std::int64_t units =
        axis.out == kNone ? std::min(of_left, of_right) : divisible(at.output(0), axis.out);
    OpSplit split = at.split(axis.name, units);
    if (of_left == units) split.inputs[0] = part(axis.left);
    if (of_right == units) split.inputs[1] = part(axis.right);
    split.outputs[0] = axis.out == kNone ? partial(Kind::kSum) : part(axis.out);
    at.add(std::move(split));
  }
}

/// The bias of a division by rows is a summand of one member: it is added once.
void gemm(SplitAt& at) {
  const int inner = at.op.int_attribute("transA", 0) != 0 ? 0 : 1;
  const int column = at.op.int_attribute("transB", 0) != 0 ? 0 : 1;
  const Tensor* bias = at.input(2);
  OpSplit columns = at.split("columns", divisible(at.input(1), column));
  columns.inputs[1] = part(column);
  columns.outputs[0] = part(1);
  if (divisible(bias, rank_of(bias) - 1) == columns.units) {
    columns.inputs[2] = part(rank_of(bias) - 1);
  }
  at.add(std::move(columns));

  OpSplit rows =
      at.split("rows", std::min(divisible(at.input(0), inner), divisible(at.input(1), 1 - column)));
  rows.inputs[0] = part(inner);
  rows.inputs[1] = part(1 - column);
  if (bias != nullptr) rows.inputs[2] = partial(Kind::kSum);
  rows.outputs[0] = partial(Kind::kSum);
  at.add(std::move(rows));

  OpSplit first = at.split(axis_name(0), divisible(at.output(0), 0));
  first.inputs[0] = part(1 - inner);
  first.outputs[0] = part(0);
  if (rank_of(bias) == 2 && divisible(bias, 0) == first.units) first.inputs[2] = part(0);
  at.add(std::move(first));
}

namespace {

/// The labels of an operand, before and after an ellipsis.
struct Labels {
  std::string before, after;
  bool ellipsis = false;

  explicit Labels(std::string_view term) {
    const std::size_t dots = term.find("...");
    ellipsis = dots != std::string_view::npos;
    before = term.substr(0, dots);
    if (ellipsis) after = term.substr(dots + 3);
  }
  int count(char label) const {
    return static_cast<int>(std::count(before.begin(), before.end(), label) +
                            std::count(after.begin(), after.end(), label));
  }
  int axis_of(char label, int rank) const {
    if (const std::size_t i = before.find(label); i != std::string::npos)
      return static_cast<int>(i);
    const std::size_t i = after.find(label);
    return rank - static_cast<int>(after.size() - i);
  }
};

struct Equation {
  std::vector<Labels> operands;
  Labels out{""};
};

Equation equation_of(const SplitAt& at) {
  std::string text = at.op.string_attribute("equation", "");
  std::erase(text, ' ');
  const std::size_t arrow = text.find("->");
  std::string terms = text.substr(0, arrow), out;
  Equation equation;
  for (std::size_t begin = 0; begin <= terms.size();) {
    const std::size_t end = std::min(terms.find(',', begin), terms.size());
    equation.operands.emplace_back(std::string_view(terms).substr(begin, end - begin));
    begin = end + 1;
  }
  if (arrow != std::string::npos) {
    out = text.substr(arrow + 2);
  } else {  // an ellipsis, then the labels that occur once, sorted
    if (terms.find("...") != std::string::npos) out = "...";
    std::string labels;
    for (const char c : terms) {
      if (c != ',' && c != '.' && std::count(terms.begin(), terms.end(), c) == 1) labels += c;
    }
    std::sort(labels.begin(), labels.end());
    out += labels;
  }
  equation.out = Labels(out);
  return equation;
}

void add_label(SplitAt& at, const Equation& equation, char label) {
  OpSplit split = at.split(std::string("index ") + label, 0);
  for (std::size_t i = 0; i < equation.operands.size(); ++i) {
    const Labels& operand = equation.operands[i];
    if (operand.count(label) == 0) continue;
    const int axis = operand.axis_of(label, rank_of(at.input(i)));
    const std::int64_t extent = divisible(at.input(i), axis);
    if (operand.count(label) > 1 || extent < 2) return;  // a diagonal, or a broadcast
    split.units = extent;
    split.inputs[i] = part(axis);
  }
  split.outputs[0] = equation.out.count(label) == 0
                         ? partial(Kind::kSum)
                         : part(equation.out.axis_of(label, rank_of(at.output(0))));
  at.add(std::move(split));
}

}  // namespace

/// An index of the output is divided there and in the operands that have it; a summed index leaves
/// summands.
void einsum(SplitAt& at) {
  const Equation equation = equation_of(at);
  std::string labels;
  for (const Labels& operand : equation.operands) {
    for (const char c : operand.before + operand.after) {
      if (labels.find(c) == std::string::npos) labels += c;
    }
  }
  for (const char label : labels) add_label(at, equation, label);
  for (std::size_t i = 0; i < equation.operands.size() && i < 32; ++i) {
    at.add_sum(InputSet{1} << i);
  }
}

void determinant(SplitAt& at) {
  along_first(at, [&](int axis) { return axis < rank_of(at.input(0)) - 2; });
}

namespace {

/// Divides groups, or where there is one, output and input channels: `made` and `read` are their
/// axes in the filter.
void add_channels(SplitAt& at, int made, int read) {
  const std::int64_t groups = at.op.int_attribute("group", 1);
  const bool biased = at.input(2) != nullptr;
  const std::int64_t in = divisible(at.input(0), 1), out = divisible(at.output(0), 1);
  if (groups > 1) {
    OpSplit split = at.split("groups", groups);
    split.inputs[0] = part(1, {in / groups});
    split.inputs[1] = part(0, {divisible(at.input(1), 0) / groups});
    if (biased) split.inputs[2] = part(0, {out / groups});
    split.outputs[0] = part(1, {out / groups});
    split.numbers = {{"group", kNone, kNone, 1}};
    at.add(std::move(split));
    return;
  }
  OpSplit channels = at.split("channels", divisible(at.input(1), made));
  channels.inputs[1] = part(made);
  if (biased) channels.inputs[2] = part(0);
  channels.outputs[0] = part(1);
  at.add(std::move(channels));
  OpSplit inputs = at.split("input channels", divisible(at.input(1), read));
  inputs.inputs[0] = part(1);
  inputs.inputs[1] = part(read);
  if (biased) inputs.inputs[2] = partial(Kind::kSum);
  inputs.outputs[0] = partial(Kind::kSum);
  at.add(std::move(inputs));
}

}  // namespace

void conv(SplitAt& at) { add_channels(at, 0, 1); }
void conv_transpose(SplitAt& at) { add_channels(at, 1, 0); }

namespace {

/// Where an attention has its heads: [batch, heads, sequence, head size], or [batch, sequence,
/// heads x head size].
struct AttentionForm {
  bool joined = false;
  std::int64_t query_heads = 0, kv_heads = 0;

  explicit AttentionForm(const SplitAt& at) {
    joined = rank_of(at.input(0)) == 3;
    query_heads = joined ? at.op.int_attribute("q_num_heads", 0) : divisible(at.input(0), 1);
    kv_heads = joined ? at.op.int_attribute("kv_num_heads", 0) : divisible(at.input(1), 1);
  }
  /// Returns the part of `tensor` that belongs to a member's heads, of which a unit has `heads`.
  Placement heads_of(const Tensor* tensor, std::int64_t all, std::int64_t heads) const {
    if (rank_of(tensor) != 3) return part(1, {heads});
    return part(2, {heads * (divisible(tensor, 2) / all)});
  }
};

/// A unit is a head of keys and values with the heads of queries that it serves.
void add_heads(SplitAt& at, const AttentionForm& form) {
  if (form.kv_heads < 1 || form.query_heads < 1) return;
  if (form.query_heads % form.kv_heads != 0) return;
  const std::int64_t group = form.query_heads / form.kv_heads;
  OpSplit heads = at.split("heads", form.kv_heads);
  heads.inputs[0] = form.heads_of(at.input(0), form.query_heads, group);
  heads.inputs[1] = form.heads_of(at.input(1), form.kv_heads, 1);
  heads.inputs[2] = form.heads_of(at.input(2), form.kv_heads, 1);
  const Tensor* mask = at.input(3);
  const std::int64_t masked = divisible(mask, rank_of(mask) - 3);
  if (masked > 1) {
    if (masked != form.query_heads) return;
    heads.inputs[3] = part(rank_of(mask) - 3, {group});
  }
  for (const std::size_t past : {4u, 5u}) {
    if (at.input(past) != nullptr) heads.inputs[past] = part(1);
  }
  heads.outputs[0] = form.heads_of(at.output(0), form.query_heads, group);
  for (std::size_t i = 1; i < heads.outputs.size(); ++i) {
    if (at.output(i) != nullptr) heads.outputs[i] = part(1, {i == 3 ? group : 1});
  }
  if (form.joined) {
    heads.numbers = {{"q_num_heads", kNone, kNone, group}, {"kv_num_heads", kNone, kNone, 1}};
  }
  at.add(std::move(heads));
}

/// Divides the sequence of queries, with all keys and values at each member. A causal attention and
/// one with a window would have to know where its queries begin.
void add_queries(SplitAt& at, const AttentionForm& form) {
  if (at.op.int_attribute("is_causal", 0) != 0 ||
      at.op.int_attribute("left_window_size", -1) >= 0 ||
      at.op.int_attribute("right_window_size", -1) >= 0) {
    return;
  }
  const int axis = form.joined ? 1 : 2;
  OpSplit queries = at.split("queries", divisible(at.input(0), axis));
  queries.inputs[0] = queries.outputs[0] = part(axis);
  const Tensor* mask = at.input(3);
  if (divisible(mask, rank_of(mask) - 2) == queries.units) {
    queries.inputs[3] = part(rank_of(mask) - 2);
  }
  if (at.output(3) != nullptr) queries.outputs[3] = part(2);
  at.add(std::move(queries));
}

}  // namespace

void attention(SplitAt& at) {
  const AttentionForm form(at);
  add_heads(at, form);
  add_queries(at, form);
}

/// Cosines and sines are those of positions, which all heads share.
void rotary(SplitAt& at) {
  const bool joined = rank_of(at.input(0)) == 3;
  OpSplit heads =
      at.split("heads", joined ? at.op.int_attribute("num_heads", 0) : divisible(at.input(0), 1));
  if (heads.units > 0) {
    heads.inputs[0] = heads.outputs[0] =
        joined ? part(2, {divisible(at.input(0), 2) / heads.units}) : part(1);
    if (joined) heads.numbers = {{"num_heads", kNone, kNone, 1}};
    at.add(std::move(heads));
  }
  const int axis = joined ? 1 : 2;
  OpSplit sequence = at.split(axis_name(axis), divisible(at.input(0), axis));
  sequence.inputs[0] = sequence.outputs[0] = part(axis);
  if (at.input(3) != nullptr) {
    sequence.inputs[3] = part(1);
  } else {
    sequence.inputs[1] = sequence.inputs[2] = part(1);
  }
  at.add(std::move(sequence));
}

}  // namespace agpcs::split_rules
