// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/build.h"

#include "frontend/onnx/attributes.h"
#include "frontend/onnx/metadata.h"
#include "frontend/onnx/shapes/rows.h"
#include "frontend/onnx/tensor.h"
#include "ir/base/check.h"
#include "ir/graph/op_table.h"

#include <fmt/format.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace agpcs::frontend {
namespace {

using onnx::NodeProto;

/// Makes names fit for line-oriented text: without blanks and control characters, each unique.
class NameSet {
 public:
  std::string unique(std::string name) {
    for (char& c : name) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte <= 0x20 || byte == 0x7F) c = '_';
    }
    if (name.empty()) name = "_";
    std::string candidate = name;
    for (int i = 2; !taken_.insert(candidate).second; ++i) {
      candidate = fmt::format("{}_{}", name, i);
    }
    return candidate;
  }

 private:
  std::set<std::string> taken_;
};

std::optional<Attribute> attribute_of(const onnx::AttributeProto& a) {
  switch (a.type()) {
    case onnx::AttributeProto::INT:
      return a.i();
    case onnx::AttributeProto::FLOAT:
      return static_cast<double>(a.f());
    case onnx::AttributeProto::STRING:
      return a.s();
    case onnx::AttributeProto::INTS:
      return std::vector<std::int64_t>(a.ints().begin(), a.ints().end());
    case onnx::AttributeProto::FLOATS:
      return std::vector<double>(a.floats().begin(), a.floats().end());
    case onnx::AttributeProto::STRINGS:
      return std::vector<std::string>(a.strings().begin(), a.strings().end());
    case onnx::AttributeProto::TENSOR: {  // ConstantOfShape's value, a scalar
      const Dense value = dense_of(a.t());
      if (!value.known || value.size() != 1) return std::nullopt;
      if (value.floating()) return value.floats[0];
      return value.ints[0];
    }
    default:
      return std::nullopt;
  }
}

Constant constant_of(const Probed& value, DType type) {
  Constant constant;
  if (value.uniform()) {
    constant.bytes = bytes_of(value[0], type);
    return constant;
  }
  Dense base = value[0];
  for (std::size_t i = 0; i < base.ints.size(); ++i) {
    const auto fit = fit_extent({value[0].ints[i], value[1].ints[i], value[2].ints[i]});
    AGPCS_CHECK(fit.has_value(), "element {} of a constant is not affine", i);
    base.ints[i] = fit->fixed;
    constant.per_sample.push_back(fit->per_sample);
  }
  constant.bytes = bytes_of(base, type);
  return constant;
}

class GraphBuilder {
 public:
  GraphBuilder(const Model& model, const Roles& roles, const ProbeResult& probed,
               const ImportOptions& options, std::string folder, Diagnostics& diag)
      : model_(model),
        roles_(roles),
        probed_(probed),
        options_(options),
        folder_(std::move(folder)),
        diag_(diag) {}

  Result<Graph> run(const DimBindings& bindings) {
    graph_.name = NameSet().unique(model_.graph().name().empty() ? "model" : model_.graph().name());
    graph_.dims.assign(bindings.values.begin(), bindings.values.end());
    graph_.frozen.assign(roles_.frozen.begin(), roles_.frozen.end());
    std::sort(graph_.frozen.begin(), graph_.frozen.end());
    graph_.trained.assign(roles_.trained.begin(), roles_.trained.end());
    std::sort(graph_.trained.begin(), graph_.trained.end());
    resolve_aliases();
    mark_live();
    for (const onnx::ValueInfoProto* input : model_.inputs) {
      graph_.inputs.push_back(add_tensor(input->name(), TensorKind::kInput));
    }
    for (const int index : model_.order) {
      if (live_.count(index) != 0) add_op(index);
    }
    for (const onnx::ValueInfoProto& output : model_.graph().output()) {
      graph_.outputs.push_back(read(output.name()));
    }
    if (!diag_.ok()) return diag_.status();
    add_warnings();
    link_graph(graph_);
    return std::move(graph_);
  }

 private:
  Fate fate(int index) const { return probed_.fates[static_cast<std::size_t>(index)]; }

  /// Returns the value that `name` stands for.
  std::string_view resolve(std::string_view name) const {
    const auto it = aliases_.find(name);
    return it != aliases_.end() ? it->second : name;
  }

  void resolve_aliases() {
    for (const int index : model_.order) {
      const NodeProto& node = model_.node(index);
      if (fate(index) == Fate::kAlias) aliases_[node.output(0)] = resolve(node.input(0));
      if (fate(index) != Fate::kKept) continue;
      for (const std::string& output : node.output()) makers_[output] = index;
    }
  }

  /// Tells whether a node reads numbers that follow the batch instead of its input.
  bool reads_numbers(int index, int input) const {
    if (input == 1 && probed_.targets.count(index) != 0) return true;
    const auto follow = probed_.follows.find({index, input});
    return follow != probed_.follows.end() && follow->second.way != Follow::Way::kRepeat;
  }

  void mark_live() {
    std::vector<int> open;
    const auto need = [&](std::string_view name) {
      if (name.empty()) return;
      read_.insert(resolve(name));
      const auto maker = makers_.find(resolve(name));
      if (maker != makers_.end() && live_.insert(maker->second).second)
        open.push_back(maker->second);
    };
    for (const onnx::ValueInfoProto& output : model_.graph().output()) need(output.name());
    while (!open.empty()) {
      const int index = open.back();
      open.pop_back();
      const NodeProto& node = model_.node(index);
      for (int i = 0; i < node.input_size(); ++i) {
        if (reads_numbers(index, i)) continue;
        need(node.input(i));
      }
    }
  }

  TensorId add_tensor(std::string_view name, TensorKind kind) {
    const Probed* value = probed_.find(name);
    AGPCS_CHECK(value != nullptr, "value '{}' has no shape", name);
    const TensorId id = add_tensor(name, kind, *value);
    ids_[name] = id;
    return id;
  }

  TensorId add_tensor(std::string_view name, TensorKind kind, const Probed& value) {
    Tensor tensor;
    tensor.name = tensor_names_.unique(std::string(name));
    tensor.kind = kind;
    const std::optional<DType> type = dtype_of(value.type());
    if (!type) {
      diag_.error_at(fmt::format("tensor '{}'", name),
                     fmt::format("element type {} is not supported", onnx_type_name(value.type())),
                     "types: float, float16, bfloat16, double, int64, int32, int16, int8, uint8, "
                     "bool");
    }
    tensor.type = type.value_or(DType::kFp32);
    const std::optional<Shape> shape = fit_shape(value);
    AGPCS_CHECK(shape.has_value(), "extents of '{}' are not affine", name);
    tensor.shape = *shape;
    if (kind == TensorKind::kConstant && type && is_constant(value)) {
      tensor.constant = constant_of(value, *type);
    }
    graph_.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(graph_.tensors.size()) - 1;
  }

  /// Returns the tensor of a value that an operator or the graph's caller reads; adds it if
  /// necessary.
  TensorId read(std::string_view name) {
    if (name.empty()) return kNone;
    name = resolve(name);
    const auto known = ids_.find(name);
    if (known != ids_.end()) return known->second;
    const TensorKind role = roles_.of(name);
    const bool unknown = role == TensorKind::kActivation;
    const TensorId id = add_tensor(name, unknown ? TensorKind::kConstant : role);
    const auto stored = probed_.stored.find(name);
    graph_.tensor(id).frozen = roles_.is_frozen(name) && stored != probed_.stored.end();
    if (stored != probed_.stored.end()) store(id, *stored->second);
    return id;
  }

  void store(TensorId id, const onnx::TensorProto& proto) {
    Tensor& tensor = graph_.tensor(id);
    if (!dtype_of(proto.data_type())) return;  // an error has been reported
    const auto report = [&](const Status& status) {
      diag_.error_at(fmt::format("tensor '{}'", tensor.name), status.message());
    };
    if (is_external(proto)) {
      Result<ExternalData> external = external_data_of(proto, folder_);
      if (!external.ok()) return report(external.status());
      tensor.external = std::move(*external);
      if (options_.read_weights) read_value(tensor);
      return;
    }
    if (!tensor.constant.bytes.empty()) return;
    Result<std::vector<std::byte>> bytes = inline_bytes(proto);
    if (!bytes.ok()) return report(bytes.status());
    if ((tensor.kind == TensorKind::kConstant && !tensor.frozen) || options_.read_weights) {
      tensor.constant.bytes = std::move(*bytes);
    }
  }

  void read_value(Tensor& tensor) {
    const std::string place = fmt::format("tensor '{}'", tensor.name);
    if (folder_.empty()) {
      return diag_.error_at(place, fmt::format("its value is in '{}', and the model has no folder",
                                               tensor.external.location));
    }
    auto bytes = read_external(tensor.external, folder_);
    if (!bytes.ok()) return diag_.error_at(place, bytes.status().message());
    if (*bytes) {
      tensor.constant.bytes = std::move(**bytes);
    } else if (tensor.kind == TensorKind::kConstant) {
      diag_.error_at(place, fmt::format("its value is in '{}', which is not in the model's folder",
                                        tensor.external.location));
    }
  }

  void add_op(int index) {
    const NodeProto& node = model_.node(index);
    Op op;
    op.type = node.op_type();
    op.domain = domain_of(node);
    op.version = model_.opsets.at(op.domain);
    const std::string first = node.output_size() > 0 ? node.output(0) : "";
    const NodeOrigin origin = origin_of(node);
    op.name = op_names_.unique(node.name().empty() ? fmt::format("{}_{}", op.type, first)
                                                   : name_of(node, origin));
    op.origin = origin.node;
    op.modules = origin.modules;
    for (int i = 0; i < node.input_size(); ++i) op.inputs.push_back(read_input(index, i));
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (std::optional<Attribute> value = attribute_of(attribute)) {
        op.attributes[attribute.name()] = std::move(*value);
      }
    }
    keep_generated_type(node, op);
    const int written_version = op.version;
    const std::string note = train(op, first);
    if (!note.empty() && notes_.insert(note).second) {
      diag_.warning_at(fmt::format("operator '{}'", op.name), note);
    }
    for (int i = 0; i < node.output_size(); ++i) {
      op.outputs.push_back(output(node, written_version, i));
    }
    while (!op.outputs.empty() && op.outputs.back() == kNone) op.outputs.pop_back();
    graph_.ops.push_back(std::move(op));
  }

  /// Adds attribute `dtype` to a ConstantOfShape whose value does not tell its type as a number.
  static void keep_generated_type(const NodeProto& node, Op& op) {
    const onnx::AttributeProto* value = find_attribute(node, "value");
    if (op.type != "ConstantOfShape" || !op.domain.empty() || value == nullptr) return;
    const int type = value->t().data_type();
    if (type == onnx::TensorProto::FLOAT || type == onnx::TensorProto::INT64) return;
    op.attributes["dtype"] = std::int64_t{type};
  }

  /// Returns what a node reads as its input `i`: the tensor of the file, or what follows the batch
  /// instead.
  TensorId read_input(int index, int i) {
    const NodeProto& node = model_.node(index);
    const std::string first = node.output_size() > 0 ? node.output(0) : "";
    if (const auto target = probed_.targets.find(index);
        i == 1 && target != probed_.targets.end()) {
      return add_tensor(first + ".shape", TensorKind::kConstant, target->second);
    }
    const auto found = probed_.follows.find({index, i});
    if (found == probed_.follows.end()) return read(node.input(i));
    const Follow& follow = found->second;
    const std::string name = i == 1 ? first + ".shape" : fmt::format("{}.input{}", first, i);
    switch (follow.way) {
      case Follow::Way::kNumbers:
        return add_tensor(name, TensorKind::kConstant, follow.value);
      case Follow::Way::kCount:
        return add_count(name, follow);
      case Follow::Way::kRepeat:
        return add_repeat(node.input(i), follow);
    }
    return kNone;
  }

  /// Adds an operator with one output of the same name.
  TensorId add_made(const std::string& name, const char* type, std::vector<TensorId> inputs,
                    DType dtype, Shape shape) {
    Tensor out;
    out.name = tensor_names_.unique(name);
    out.type = dtype;
    out.shape = std::move(shape);
    Op op;
    op.name = op_names_.unique(fmt::format("{}_{}", type, out.name));
    op.type = type;
    op.version = model_.opsets.at("");
    op.inputs = std::move(inputs);
    graph_.tensors.push_back(std::move(out));
    op.outputs = {static_cast<TensorId>(graph_.tensors.size()) - 1};
    graph_.ops.push_back(std::move(op));
    return graph_.ops.back().outputs.front();
  }

  /// Adds int64 numbers that may grow with the samples.
  TensorId add_numbers(const std::string& name, const Shape& numbers, bool scalar = false) {
    Tensor tensor;
    tensor.name = tensor_names_.unique(name);
    tensor.type = DType::kInt64;
    tensor.kind = TensorKind::kConstant;
    if (!scalar) tensor.shape = {{static_cast<std::int64_t>(numbers.size()), 0}};
    Dense base = int64_vector({});
    for (const Extent& number : numbers) {
      base.ints.push_back(number.fixed);
      tensor.constant.per_sample.push_back(number.per_sample);
    }
    tensor.constant.bytes = bytes_of(base, DType::kInt64);
    if (!depends_on_batch(numbers)) tensor.constant.per_sample.clear();
    graph_.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(graph_.tensors.size()) - 1;
  }

  /// Adds numbers that count the samples along an axis, beside numbers that are the same in all
  /// rows: the first row, plus the number of the sample where the second row differs from it.
  TensorId add_count(const std::string& name, const Follow& follow) {
    const Shape shape = *fit_shape(follow.value);
    const auto axis = static_cast<std::size_t>(follow.axis);
    const TensorId start = add_numbers(name + ".start", {{0, 0}}, true);
    const TensorId limit = add_numbers(name + ".limit", {{0, 1}}, true);
    const TensorId step = add_numbers(name + ".step", {{1, 0}}, true);
    TensorId counted =
        add_made(name + ".count", "Range", {start, limit, step}, DType::kInt64, {{0, 1}});
    if (shape.size() > 1) {
      Shape column(shape.size(), Extent{1, 0});
      column[axis] = {0, 1};
      counted = add_made(name + ".column", "Reshape",
                         {counted, add_numbers(name + ".extents", column)}, DType::kInt64, column);
    }
    const std::vector<std::int64_t>&first = follow.first.ints, &rise = follow.rise.ints;
    const bool plain = std::count(first.begin(), first.end(), 0) == std::ssize(first) &&
                       std::count(rise.begin(), rise.end(), 1) == std::ssize(rise);
    if (plain) return counted;
    const TensorId rises = add_tensor(name + ".rise", TensorKind::kConstant, Probed{{follow.rise}});
    const TensorId base =
        add_tensor(name + ".first", TensorKind::kConstant, Probed{{follow.first}});
    const TensorId risen = add_made(name + ".risen", "Mul", {counted, rises}, DType::kInt64, shape);
    return add_made(name, "Add", {base, risen}, DType::kInt64, shape);
  }

  /// Adds what repeats the rows of one sample, of which the file has a copy for each sample of the
  /// export. All readers share it.
  TensorId add_repeat(const std::string& input, const Follow& follow) {
    const std::string_view source = resolve(input);
    const auto key = std::make_tuple(source, follow.axis, follow.broadcasts);
    if (const auto known = repeated_.find(key); known != repeated_.end()) return known->second;
    const Shape shape = *fit_shape(follow.value);
    const auto axis = static_cast<std::size_t>(follow.axis);
    TensorId rows = first_rows(source, axis, follow.period);
    const std::string name = std::string(source) + ".repeated";
    const DType type = graph_.tensor(rows).type;
    if (!follow.broadcasts && follow.period == 1) {
      const TensorId extents = add_numbers(name + ".shape", shape);
      rows = add_made(name, "Expand", {rows, extents}, type, shape);
    } else if (!follow.broadcasts) {
      Shape repeats(shape.size(), Extent{1, 0});
      repeats[axis] = {0, 1};
      const TensorId numbers = add_numbers(name + ".repeats", repeats);
      rows = add_made(name, "Tile", {rows, numbers}, type, shape);
    }
    return repeated_[key] = rows;
  }

  /// Returns the first `count` rows of a constant along `axis`: the constant itself if it has no
  /// more.
  TensorId first_rows(std::string_view source, std::size_t axis, std::int64_t count) {
    const auto key = std::make_tuple(source, static_cast<int>(axis), count);
    if (const auto known = rows_.find(key); known != rows_.end()) return known->second;
    const bool is_new = ids_.count(source) == 0;
    const TensorId whole = read(source);
    TensorId part = whole;
    if (graph_.tensor(whole).shape[axis].fixed != count) {
      if (is_new) {
        ids_.erase(source);  // another reader may need all rows
      } else {
        Tensor copy = graph_.tensor(whole);
        copy.name = tensor_names_.unique(std::string(source) + ".rows");
        graph_.tensors.push_back(std::move(copy));
        part = static_cast<TensorId>(graph_.tensors.size()) - 1;
      }
      keep_rows(graph_.tensor(part), axis, count);
    }
    return rows_[key] = part;
  }

  /// Adds output `i`; returns kNone for an optional output that nothing reads.
  TensorId output(const NodeProto& node, int opset, int i) {
    const std::string& name = node.output(i);
    if (name.empty()) return kNone;
    if (read_.count(name) == 0) {
      const bool known = probed_.find(name) != nullptr;
      if (!known || is_optional_output(node, opset, i)) return kNone;
    }
    return add_tensor(name, TensorKind::kActivation);
  }

  static bool is_optional_output(const NodeProto& node, int opset, int i) {
    const onnx::OpSchema* schema =
        onnx::OpSchemaRegistry::Schema(node.op_type(), opset, domain_of(node));
    if (schema == nullptr || i >= static_cast<int>(schema->outputs().size())) return false;
    return schema->outputs()[static_cast<std::size_t>(i)].GetOption() == onnx::OpSchema::Optional;
  }

  std::string train(Op& op, const std::string& first_output) {
    if (options_.as_written) return "";
    return to_training_form(op, first_output, [this](Tensor tensor) {
      tensor.name = tensor_names_.unique(std::move(tensor.name));
      graph_.tensors.push_back(std::move(tensor));
      return static_cast<TensorId>(graph_.tensors.size()) - 1;
    });
  }

  void add_warnings() {
    std::set<std::string> reported;
    for (const Op& op : graph_.ops) {
      if (find_op_info(op.domain, op.type) != nullptr || is_measured_only(op)) continue;
      if (!reported.insert(op.domain + "." + op.type).second) continue;
      diag_.warning_at(
          fmt::format("operator '{}'", op.name),
          fmt::format("{}{}{} is not in the operator table; it is planned as memory-bound "
                      "elementwise",
                      op.domain, op.domain.empty() ? "" : ".", op.type));
    }
  }

  const Model& model_;
  const Roles& roles_;
  const ProbeResult& probed_;
  const ImportOptions& options_;
  std::string folder_;
  Diagnostics& diag_;
  Graph graph_;
  NameSet tensor_names_, op_names_;
  std::unordered_map<std::string_view, std::string_view> aliases_;
  std::unordered_map<std::string_view, int> makers_;  ///< kept nodes by their outputs
  std::unordered_map<std::string_view, TensorId> ids_;
  std::unordered_set<std::string_view> read_;
  std::unordered_set<int> live_;
  std::set<std::string> notes_;
  /// What was added for constants that follow the batch: by source, axis and number of rows, and by
  /// source, axis and whether the reader broadcasts.
  std::map<std::tuple<std::string_view, int, std::int64_t>, TensorId> rows_;
  std::map<std::tuple<std::string_view, int, bool>, TensorId> repeated_;
};

}  // namespace

Result<Graph> build_graph(const Model& model, const DimBindings& bindings, const Roles& roles,
                          const ProbeResult& probed, const ImportOptions& options,
                          const std::string& folder, Diagnostics& diag) {
  return GraphBuilder(model, roles, probed, options, folder, diag).run(bindings);
}

}  // namespace agpcs::frontend
