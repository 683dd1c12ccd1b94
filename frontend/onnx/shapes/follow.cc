// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/follow.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/shapes/rebind.h"
#include "frontend/onnx/tensor.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace agpcs::frontend {
namespace {

using onnx::TensorProto;

Probed with_extent(const Probed& value, std::size_t axis, Extent extent) {
  std::vector<Dense> at;
  for (std::size_t p = 0; p < kProbeCount; ++p) {
    Dense dense;
    dense.type = value[p].type;
    dense.dims = value[p].dims;
    dense.dims[axis] = extent.at(kProbes[p]);
    at.push_back(std::move(dense));
  }
  return probed(std::move(at));
}

Probed with_element(const Probed& value, std::size_t element, Extent extent) {
  std::vector<Dense> at;
  for (std::size_t p = 0; p < kProbeCount; ++p) {
    at.push_back(value[p]);
    at.back().ints[element] = extent.at(kProbes[p]);
  }
  return probed(std::move(at));
}

/// Returns the extent of `axis` if it does not depend on the samples.
std::optional<std::int64_t> constant_extent(const Probed& value, std::size_t axis) {
  if (value[0].dims.size() != value[1].dims.size() || axis >= value[0].dims.size()) {
    return std::nullopt;
  }
  const std::int64_t extent = value[0].dims[axis];
  for (const Dense& dense : value.at) {
    if (dense.dims.size() <= axis || dense.dims[axis] != extent) return std::nullopt;
  }
  return extent;
}

bool is_known_numbers(const Probed& value) {
  return value.uniform() && value.known() && value.type() == TensorProto::INT64;
}

/// Tells whether row r along `axis` is equal to row r % period, for all rows.
bool rows_repeat(const std::vector<std::byte>& bytes, const Dims& dims, std::size_t axis,
                 std::int64_t period) {
  std::size_t outer = 1;
  for (std::size_t i = 0; i < axis; ++i) outer *= static_cast<std::size_t>(dims[i]);
  const auto rows = static_cast<std::size_t>(dims[axis]);
  if (outer == 0 || rows == 0 || bytes.size() % (outer * rows) != 0) return false;
  const std::size_t row = bytes.size() / outer / rows;
  const std::size_t repeat = static_cast<std::size_t>(period) * row;
  for (std::size_t o = 0; o < outer; ++o) {
    const std::byte* begin = bytes.data() + o * rows * row;
    if (std::memcmp(begin, begin + repeat, rows * row - repeat) != 0) return false;
  }
  return true;
}

/// Fills `first` and `rise` of a constant in which each int64 number is that of its row along
/// `axis`, or the same in all rows, or in which every number rises from row to row by the length of
/// a row, as places in a flattened tensor do. Returns false if it has others.
bool count_rows(const std::vector<std::byte>& bytes, const Dims& dims, std::size_t axis,
                Follow& follow) {
  std::size_t outer = 1;
  for (std::size_t i = 0; i < axis; ++i) outer *= static_cast<std::size_t>(dims[i]);
  const auto rows = static_cast<std::size_t>(dims[axis]);
  std::vector<std::int64_t> numbers(bytes.size() / sizeof(std::int64_t));
  if (numbers.empty() || numbers.size() % (outer * rows) != 0) return false;
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  const std::size_t row = numbers.size() / outer / rows;
  follow.first = follow.rise = int64_vector({});
  follow.first.dims = follow.rise.dims = dims;
  follow.first.dims[axis] = follow.rise.dims[axis] = 1;
  const auto length = static_cast<std::int64_t>(row);
  const bool strided = outer == 1 && row > 1 && numbers[row] - numbers[0] == length;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::size_t r = i / row % rows;
    const std::int64_t first = numbers[i - r * row];
    const bool counts = first == 0 && numbers[i - r * row + row] == 1;
    const std::int64_t rise = strided ? length : counts ? 1 : 0;
    if (numbers[i] != first + rise * static_cast<std::int64_t>(r)) return false;
    if (r > 0) continue;
    follow.first.ints.push_back(first);
    follow.rise.ints.push_back(rise);
  }
  return true;
}

}  // namespace

BatchFollower::BatchFollower(const Model& model, std::int64_t batch, std::string folder,
                             const Values& values, Infer infer, IsTrained is_trained)
    : model_(model),
      batch_(batch),
      folder_(std::move(folder)),
      values_(values),
      infer_(std::move(infer)),
      is_trained_(std::move(is_trained)) {
  for (const int index : model_.order) {
    for (const std::string& output : model_.node(index).output()) makers_[output] = index;
  }
}

/// Returns the extent that is `extent` at the exported number of samples and a multiple of the
/// samples at every other. With `exact`, it is the number of samples itself.
std::optional<Extent> BatchFollower::scaled(std::int64_t extent, bool exact) const {
  if (extent <= 0 || extent % batch_ != 0 || (extent == batch_) != exact) return std::nullopt;
  return Extent{0, extent / batch_};
}

/// Adds changes of one extent or one number. Any number of a Reshape's target might take the batch:
/// `rebind_target` decides which one does.
void BatchFollower::add_single(int node, const Inputs& inputs, bool exact,
                               std::vector<Changes>& all) const {
  const bool reshapes = model_.node(node).op_type() == "Reshape";
  for (std::size_t i = 0; i < inputs.size() && !reshapes; ++i) {
    if (inputs[i] == nullptr || !is_known_numbers(*inputs[i])) continue;
    const std::vector<std::int64_t>& numbers = (*inputs[i])[0].ints;
    for (std::size_t j = 0; j < std::min<std::size_t>(numbers.size(), 16); ++j) {
      if (const auto extent = scaled(numbers[j], exact)) {
        all.push_back({{static_cast<int>(i), false, j, *extent}});
      }
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == nullptr) continue;
    for (std::size_t axis = 0; axis < (*inputs[i])[0].dims.size(); ++axis) {
      const auto constant = constant_extent(*inputs[i], axis);
      if (!constant) continue;
      if (const auto extent = scaled(*constant, exact)) {
        all.push_back({{static_cast<int>(i), true, axis, *extent}});
      }
    }
  }
}

/// Adds changes of several inputs at the same axis, counted from the front or from the back, and of
/// both inputs of an Expand.
void BatchFollower::add_joint(int node, const Inputs& inputs, std::vector<Changes>& all) const {
  std::vector<Changes> singles;
  add_single(node, inputs, true, singles);
  const auto rank_of = [&](const Change& change) {
    return (*inputs[static_cast<std::size_t>(change.input)])[0].dims.size();
  };
  for (const bool from_front : {true, false}) {
    std::map<std::size_t, Changes> by_axis;
    for (const Changes& single : singles) {
      const Change& change = single.front();
      if (!change.is_axis) continue;
      by_axis[from_front ? change.index : rank_of(change) - change.index].push_back(change);
    }
    for (const auto& [axis, changes] : by_axis) {
      if (changes.size() > 1) all.push_back(changes);
    }
  }
  if (model_.node(node).op_type() != "Expand") return;
  for (const Changes& axis : singles) {
    for (const Changes& number : singles) {
      if (!axis[0].is_axis || axis[0].input != 0 || number[0].is_axis) continue;
      all.push_back({axis[0], number[0]});
    }
  }
}

/// Returns what may hold the batch, the likeliest first: the batch itself before its multiples, the
/// front axis before the others.
std::vector<BatchFollower::Changes> BatchFollower::candidates(int node,
                                                              const Inputs& inputs) const {
  std::vector<Changes> all;
  add_single(node, inputs, true, all);
  add_joint(node, inputs, all);
  add_single(node, inputs, false, all);
  return all;
}

std::optional<std::vector<Probed>> BatchFollower::outputs_with(int node, const Inputs& inputs,
                                                               const Changes& changes) const {
  std::vector<Probed> changed;
  for (const Probed* input : inputs) changed.push_back(input != nullptr ? *input : Probed());
  for (const Change& change : changes) {
    Probed& value = changed[static_cast<std::size_t>(change.input)];
    value = change.is_axis ? with_extent(value, change.index, change.extent)
                           : with_element(value, change.index, change.extent);
  }
  const onnx::NodeProto& proto = model_.node(node);
  if (proto.op_type() == "Reshape" && changed.size() > 1 && changes.front().is_axis &&
      is_known_numbers(changed[1])) {
    const std::optional<Shape> data = fit_shape(changed[0]);
    const auto target =
        data ? rebind_target(*data, changed[1][0].ints, batch_) : std::optional<Shape>();
    if (target) {
      std::vector<Dense> at;
      for (const std::int64_t n : kProbes) at.push_back(int64_vector(dims_at(*target, n)));
      changed[1] = probed(std::move(at));
    }
  }
  std::vector<std::vector<Dense>> outputs(static_cast<std::size_t>(proto.output_size()));
  for (std::size_t p = 0; p < kProbeCount; ++p) {
    std::vector<const Dense*> at;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      at.push_back(inputs[i] != nullptr ? &changed[i][p] : nullptr);
    }
    std::vector<Dense> made = infer_(node, at);
    if (made.size() != outputs.size()) return std::nullopt;
    for (std::size_t i = 0; i < made.size(); ++i) outputs[i].push_back(std::move(made[i]));
  }
  std::vector<Probed> values;
  for (std::vector<Dense>& at : outputs) {
    values.push_back(probed(std::move(at)));
    if (!fit_shape(values.back())) return std::nullopt;
  }
  return values;
}

/// Tries the candidates in order, and takes the first that fits, is accepted, and can be made.
std::optional<std::vector<Probed>> BatchFollower::search(int node, const Inputs& inputs,
                                                         bool numbers_only, const Accept& accept) {
  for (const Changes& changes : candidates(node, inputs)) {
    if (numbers_only && changes.front().is_axis) continue;
    std::optional<std::vector<Probed>> outputs = outputs_with(node, inputs, changes);
    if (outputs && accept(*outputs) && realize(node, inputs, changes)) return outputs;
  }
  return std::nullopt;
}

std::optional<std::vector<Probed>> BatchFollower::follow_node(int node, const Inputs& inputs) {
  const std::vector<Dense> outputs = infer_(node, InputsAtSamples(inputs, batch_).at);
  if (outputs.empty()) return std::nullopt;  // it never fitted
  return search(node, inputs, false, [&](const std::vector<Probed>& made) {
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (dims_at(*fit_shape(made[i]), batch_) != outputs[i].dims) return false;
    }
    return true;
  });
}

bool BatchFollower::realize(int node, const Inputs& inputs, const Changes& changes) {
  const Follows before = found;
  for (const Change& change : changes) {
    const Probed& input = *inputs[static_cast<std::size_t>(change.input)];
    if (change.is_axis) {
      if (realize_axis(node, inputs, change)) continue;
      found = before;
      return false;
    }
    Follow& follow = found[{node, change.input}];
    follow.way = Follow::Way::kNumbers;
    follow.value = with_element(input, change.index, change.extent);
  }
  return true;
}

/// Makes an axis of an input follow: where the value is made, or else where it is read.
bool BatchFollower::realize_axis(int node, const Inputs& inputs, const Change& change) {
  const std::string& name = model_.node(node).input(change.input);
  if (follow_axis(name, change.index, change.extent)) return true;
  const Probed& input = *inputs[static_cast<std::size_t>(change.input)];
  std::optional<Follow> rows = repeated_rows(name, input, change.index, change.extent);
  if (!rows) return false;
  let_broadcast(node, inputs, change, *rows);
  found[{node, change.input}] = std::move(*rows);
  return true;
}

/// Leaves one row as it is, if the node makes the same of it as of one row for each sample.
void BatchFollower::let_broadcast(int node, const Inputs& inputs, const Change& change,
                                  Follow& rows) const {
  if (rows.way != Follow::Way::kRepeat || rows.period != 1) return;
  Change one = change;
  one.extent = {1, 0};
  const auto repeated = outputs_with(node, inputs, {change});
  const auto broadcast = outputs_with(node, inputs, {one});
  if (!repeated || !broadcast) return;
  for (std::size_t i = 0; i < repeated->size(); ++i) {
    if (*fit_shape((*repeated)[i]) != *fit_shape((*broadcast)[i])) return;
  }
  rows.broadcasts = true;
  rows.value = with_extent(*inputs[static_cast<std::size_t>(change.input)], change.index, {1, 0});
}

bool BatchFollower::follow_axis(std::string_view name, std::size_t axis, Extent extent) {
  const auto maker = makers_.find(name);
  const auto value = values_.find(name);
  if (maker == makers_.end() || value == values_.end() || !value->second.shaped()) return false;
  const onnx::NodeProto& node = model_.node(maker->second);
  if (node.op_type() == "Constant" && domain_of(node).empty()) return false;
  if (!open_.emplace(name, axis).second) return false;
  Inputs inputs;
  for (const std::string& input : node.input()) {
    const auto it = values_.find(input);
    inputs.push_back(it != values_.end() && it->second.shaped() ? &it->second : nullptr);
  }
  const Probed wanted = with_extent(value->second, axis, extent);
  const auto output = std::find(node.output().begin(), node.output().end(), name);
  const auto i = static_cast<std::size_t>(output - node.output().begin());
  // A single row is repeated as late as possible: what comes before is computed once.
  const bool numbers_only = batch_ == 1;
  const bool made =
      search(maker->second, inputs, numbers_only, [&](const std::vector<Probed>& outputs) {
        for (std::size_t p = 0; p < kProbeCount; ++p) {
          if (outputs[i][p].dims != wanted[p].dims) return false;
        }
        return true;
      }).has_value();
  open_.erase({name, axis});
  return made;
}

/// Returns how a constant is made of its rows for one sample, if those for the others are equal.
std::optional<Follow> BatchFollower::repeated_rows(std::string_view name, const Probed& value,
                                                   std::size_t axis, Extent extent) const {
  Follow follow;
  follow.way = Follow::Way::kRepeat;
  follow.value = with_extent(value, axis, extent);
  follow.axis = static_cast<int>(axis);
  follow.period = extent.per_sample;
  if (!value.uniform()) return std::nullopt;
  for (const onnx::ValueInfoProto* input : model_.inputs) {
    if (input->name() == name) return std::nullopt;  // it is fed
  }
  if (batch_ == 1) return follow;
  if (is_trained_(name)) return std::nullopt;
  const auto bytes = bytes_of_value(name, value);
  if (!bytes) return std::nullopt;
  if (rows_repeat(*bytes, value[0].dims, axis, extent.per_sample)) return follow;
  if (value.type() != TensorProto::INT64 || extent.per_sample != 1) return std::nullopt;
  follow.way = Follow::Way::kCount;
  if (!count_rows(*bytes, value[0].dims, axis, follow)) return std::nullopt;
  return follow;
}

/// Returns the elements of a constant of any size; nullopt if the file does not have them.
std::optional<std::vector<std::byte>> BatchFollower::bytes_of_value(std::string_view name,
                                                                    const Probed& value) const {
  const TensorProto* stored = nullptr;
  if (const auto it = model_.initializers.find(name); it != model_.initializers.end()) {
    stored = it->second;
  } else if (const auto maker = makers_.find(name); maker != makers_.end()) {
    const onnx::AttributeProto* given = find_attribute(model_.node(maker->second), "value");
    if (given != nullptr && model_.node(maker->second).op_type() == "Constant")
      stored = &given->t();
  }
  if (stored != nullptr && is_external(*stored)) {
    if (folder_.empty()) return std::nullopt;
    const Result<ExternalData> external = external_data_of(*stored, folder_);
    if (!external.ok()) return std::nullopt;
    Result<std::optional<std::vector<std::byte>>> read = read_external(*external, folder_);
    return read.ok() ? std::move(*read) : std::nullopt;
  }
  if (stored != nullptr) {
    Result<std::vector<std::byte>> bytes = inline_bytes(*stored);
    return bytes.ok() ? std::optional(std::move(*bytes)) : std::nullopt;
  }
  if (!value.known() || !value.uniform()) return std::nullopt;
  return bytes_of(value[0], *dtype_of(value.type()));
}

}  // namespace agpcs::frontend
