// SPDX-License-Identifier: Apache-2.0
// The rules of operators that read or write at computed places.
#include "ir/graph/split/rules.h"

#include <algorithm>

namespace agpcs::split_rules {

/// The axis that is looked up is the vocabulary: each member finds the rows that it has, and the
/// sum of what they found is the output.
void gather(SplitAt& at) {
  const Tensor *table = at.input(0), *indices = at.input(1);
  const int along = at.axis(0, rank_of(table)), width = rank_of(indices);
  OpSplit vocabulary = at.split("vocabulary", divisible(table, along));
  vocabulary.inputs[0] = part(along);
  vocabulary.indices = 1;
  if (is_floating(table->type)) {
    vocabulary.outputs[0] = partial(Kind::kSum);
    at.add(std::move(vocabulary));
  }
  for (int axis = 0; axis < rank_of(at.output(0)); ++axis) {
    OpSplit split = at.split(axis_name(axis), divisible(at.output(0), axis));
    if (axis >= along && axis < along + width) {
      split.inputs[1] = part(axis - along);
    } else {
      split.inputs[0] = part(axis < along ? axis : axis - width + 1);
    }
    split.outputs[0] = part(axis);
    at.add(std::move(split));
  }
}

void gather_elements(SplitAt& at) {
  const int along = at.axis(0, rank_of(at.input(0)));
  OpSplit vocabulary = at.split("vocabulary", divisible(at.input(0), along));
  if (is_floating(at.input(0)->type)) {
    vocabulary.inputs[0] = part(along);
    vocabulary.outputs[0] = partial(Kind::kSum);
    vocabulary.indices = 1;
    at.add(std::move(vocabulary));
  }
  for (int axis = 0; axis < rank_of(at.output(0)); ++axis) {
    OpSplit split = at.split(axis_name(axis), divisible(at.output(0), axis));
    split.inputs[1] = split.outputs[0] = part(axis);
    if (axis != along) {
      if (divisible(at.input(0), axis) != split.units) continue;
      split.inputs[0] = part(axis);
    }
    at.add(std::move(split));
  }
}

/// Divides batch axes, axes of the tuples, and axes behind those that the tuples address.
void gather_nd(SplitAt& at) {
  const Tensor *data = at.input(0), *indices = at.input(1);
  const auto batch = static_cast<int>(at.op.int_attribute("batch_dims", 0));
  const int tuples = rank_of(indices) - 1;
  const auto addressed = static_cast<int>(divisible(indices, tuples));
  for (int axis = 0; axis < rank_of(at.output(0)); ++axis) {
    OpSplit split = at.split(axis_name(axis), divisible(at.output(0), axis));
    if (axis < batch || axis >= tuples) {
      const int own = axis < batch ? axis : axis - tuples + batch + addressed;
      if (divisible(data, own) != split.units) continue;
      split.inputs[0] = part(own);
    }
    if (axis < tuples) split.inputs[1] = part(axis);
    split.outputs[0] = part(axis);
    at.add(std::move(split));
  }
}

void scatter_elements(SplitAt& at) {
  const int along = at.axis(0, rank_of(at.input(0)));
  for (int axis = 0; axis < rank_of(at.input(0)); ++axis) {
    OpSplit split = at.split(axis_name(axis), divisible(at.input(0), axis));
    if (axis == along || divisible(at.input(1), axis) != split.units) continue;
    split.inputs.assign(split.inputs.size(), part(axis));
    split.outputs[0] = part(axis);
    at.add(std::move(split));
  }
}

/// Divides axes behind those that the tuples address.
void scatter_nd(SplitAt& at) {
  const int tuples = rank_of(at.input(1)) - 1;
  const auto addressed = static_cast<int>(divisible(at.input(1), tuples));
  for (int axis = addressed; axis < rank_of(at.input(0)) && addressed > 0; ++axis) {
    OpSplit split = at.split(axis_name(axis), divisible(at.input(0), axis));
    split.inputs[0] = split.outputs[0] = part(axis);
    split.inputs[2] = part(axis - addressed + tuples);
    at.add(std::move(split));
  }
}

/// A member makes the columns of its classes.
void one_hot(SplitAt& at) {
  const int rank = rank_of(at.output(0)), classes = at.axis(-1, rank);
  OpSplit vocabulary = at.split("vocabulary", divisible(at.output(0), classes));
  vocabulary.outputs[0] = part(classes);
  vocabulary.numbers = {{"", 1, 0, 1}};
  vocabulary.indices = 0;
  at.add(std::move(vocabulary));
  for (int axis = 0; axis < rank; ++axis) {
    if (axis == classes) continue;
    OpSplit split = at.split(axis_name(axis), divisible(at.output(0), axis));
    split.inputs[0] = part(axis < classes ? axis : axis - 1);
    split.outputs[0] = part(axis);
    at.add(std::move(split));
  }
}

void compress(SplitAt& at) {
  if (at.op.attributes.count("axis") == 0) return;  // of all elements in a row
  const int along = at.axis(0, rank_of(at.input(0)));
  along_first(at, [along](int axis) { return axis != along; });
}

void reverse_sequence(SplitAt& at) {
  const auto time = static_cast<int>(at.op.int_attribute("time_axis", 0));
  const auto batch = static_cast<int>(at.op.int_attribute("batch_axis", 1));
  const std::size_t before = at.found.size();
  along_first(at, [time](int axis) { return axis != time; });
  for (std::size_t i = before; i < at.found.size(); ++i) {
    if (at.found[i].inputs[0].axis == batch) at.found[i].inputs[1] = part(0);
  }
}

/// Every point reads the whole of a channel; the points themselves are divided, too.
void grid_sample(SplitAt& at) {
  OpSplit channels = at.split("channels", divisible(at.input(0), 1));
  channels.inputs[0] = channels.outputs[0] = part(1);
  at.add(std::move(channels));
  for (int axis = 0; axis < rank_of(at.output(0)); ++axis) {
    if (axis == 1) continue;
    OpSplit split = at.split(axis_name(axis), divisible(at.output(0), axis));
    if (axis == 0) split.inputs[0] = part(0);
    split.inputs[1] = part(axis == 0 ? 0 : axis - 1);
    split.outputs[0] = part(axis);
    at.add(std::move(split));
  }
}

}  // namespace agpcs::split_rules
