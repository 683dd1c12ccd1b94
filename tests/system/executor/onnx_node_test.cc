// SPDX-License-Identifier: Apache-2.0
#include "tests/system/executor/onnx_node_test.h"

#include "frontend/onnx/proto.h"
#include "frontend/onnx/rewrite/control_flow.h"
#include "runtime/torch/stage.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

namespace agpcs::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = AGPCS_ONNX_NODE_TESTS;

// A test that cannot be run, and why.
struct Skip {
  std::string why;
};

struct Value {
  at::Tensor tensor;  // as computed
  int onnx_type = 0;
};

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

at::ScalarType stored_type_of_onnx(int type) {
  if (type == onnx::TensorProto::FLOAT16) return at::kHalf;
  if (type == onnx::TensorProto::BFLOAT16) return at::kBFloat16;
  return computed_type_of_onnx(type);
}

// Elements from the typed fields of a TensorProto, in its stored type.
template <typename T, typename Field>
at::Tensor from_field(const Field& field, at::ScalarType type) {
  std::vector<T> values;
  for (const auto& v : field) values.push_back(static_cast<T>(v));
  return at::tensor(values).to(type);
}

at::Tensor elements_of(const onnx::TensorProto& proto, at::ScalarType stored) {
  if (proto.has_raw_data()) {
    const std::string& raw = proto.raw_data();
    at::Tensor t =
        at::empty({static_cast<std::int64_t>(raw.size() / c10::elementSize(stored))}, stored);
    if (!raw.empty()) std::memcpy(t.data_ptr(), raw.data(), raw.size());
    return t;
  }
  if (stored == at::kHalf || stored == at::kBFloat16) {
    at::Tensor t = at::empty({proto.int32_data_size()}, stored);
    for (int i = 0; i < proto.int32_data_size(); ++i) {
      static_cast<std::uint16_t*>(t.data_ptr())[i] =
          static_cast<std::uint16_t>(proto.int32_data(i));
    }
    return t;
  }
  if (proto.float_data_size() > 0) return from_field<float>(proto.float_data(), stored);
  if (proto.double_data_size() > 0) return from_field<double>(proto.double_data(), stored);
  if (proto.int64_data_size() > 0) return from_field<std::int64_t>(proto.int64_data(), stored);
  return from_field<std::int64_t>(proto.int32_data(), stored);
}

std::string type_name(int type) {
  std::string name =
      onnx::TensorProto::DataType_Name(static_cast<onnx::TensorProto::DataType>(type));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return name;
}

Value value_of(const onnx::TensorProto& proto) {
  using T = onnx::TensorProto;
  static const std::set<int> kHeld = {T::FLOAT, T::FLOAT16, T::BFLOAT16, T::DOUBLE, T::INT64,
                                      T::INT32, T::INT16,   T::INT8,     T::UINT8,  T::BOOL};
  if (kHeld.count(proto.data_type()) == 0) {
    throw Skip{"element type " + type_name(proto.data_type()) + " is outside AGPCS"};
  }
  std::vector<std::int64_t> dims(proto.dims().begin(), proto.dims().end());
  at::Tensor t = elements_of(proto, stored_type_of_onnx(proto.data_type())).view(dims);
  return {t.to(computed_type_of_onnx(proto.data_type())), proto.data_type()};
}

Attribute attribute_of(const onnx::AttributeProto& a) {
  switch (a.type()) {
    case onnx::AttributeProto::INT:
      return static_cast<std::int64_t>(a.i());
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
    case onnx::AttributeProto::TENSOR: {  // ConstantOfShape's value, as the importer has it
      const at::Tensor value = value_of(a.t()).tensor;
      if (value.is_floating_point()) return value.item<double>();
      return value.to(at::kLong).item<std::int64_t>();
    }
    default:
      throw Skip{fmt::format("attribute '{}' is a graph", a.name())};
  }
}

using Values = std::map<std::string, Value>;

std::string full_type(const onnx::NodeProto& node) {
  const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
  return standard ? node.op_type() : node.domain() + "." + node.op_type();
}

// The operator of a node, without inputs and outputs.
Op op_of(const onnx::NodeProto& node, int version) {
  Op op;
  op.name = node.name();
  op.type = node.op_type();
  op.version = version;
  for (const auto& a : node.attribute()) {
    op.attributes[a.name()] = attribute_of(a);
    if (a.has_t()) op.attributes["dtype"] = static_cast<std::int64_t>(a.t().data_type());
  }
  return op;
}

void run_node(const onnx::NodeProto& node, int version, Values& values) {
  if (node.op_type() == "Constant") {
    const onnx::AttributeProto& a = node.attribute(0);
    if (a.name() == "value") values[node.output(0)] = value_of(a.t());
    if (a.name() == "value_float")
      values[node.output(0)] = {at::tensor(a.f()), onnx::TensorProto::FLOAT};
    if (a.name() == "value_int")
      values[node.output(0)] = {at::tensor(a.i(), at::kLong), onnx::TensorProto::INT64};
    if (a.name() == "value_ints") {
      const std::vector<std::int64_t> ints(a.ints().begin(), a.ints().end());
      values[node.output(0)] = {at::tensor(ints, at::kLong), onnx::TensorProto::INT64};
    }
    if (values.count(node.output(0)) == 0) throw Skip{"a Constant of attribute " + a.name()};
    return;
  }
  Op op = op_of(node, version);
  OpCall call{op, {}, nullptr, {}};
  for (const std::string& name : node.input()) {
    op.inputs.push_back(name.empty() ? kNone : static_cast<TensorId>(call.in.size()));
    call.in.push_back(name.empty() ? at::Tensor() : values.at(name).tensor);
  }
  for (const std::string& name : node.output()) op.outputs.push_back(name.empty() ? kNone : 0);
  const Tensors outputs = find_kernel(node.domain(), node.op_type())(call);
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    if (static_cast<std::size_t>(i) >= outputs.size())
      throw KernelError(fmt::format("no output {}", i));
    values[node.output(i)] = {outputs[static_cast<std::size_t>(i)], 0};
  }
}

std::optional<std::string> difference(const std::string& name, const at::Tensor& got,
                                      const Value& expected) {
  const at::Tensor& want = expected.tensor;
  if (got.scalar_type() != want.scalar_type()) {
    return fmt::format("output '{}' is {}, expected {}", name, c10::toString(got.scalar_type()),
                       c10::toString(want.scalar_type()));
  }
  if (got.sizes() != want.sizes()) {
    return fmt::format("output '{}' has shape [{}], expected [{}]", name,
                       fmt::join(got.sizes(), ", "), fmt::join(want.sizes(), ", "));
  }
  const bool bf16 = expected.onnx_type == onnx::TensorProto::BFLOAT16;
  const bool fp16 =
      expected.onnx_type == onnx::TensorProto::FLOAT16;  // rounded after each operator
  if (at::allclose(got.to(at::kDouble), want.to(at::kDouble), bf16 ? 1e-2 : 1e-3,
                   fp16 ? 1e-3 : 1e-6, true))
    return std::nullopt;
  return fmt::format("output '{}' differs by up to {}", name,
                     (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>());
}

int version_of(const onnx::ModelProto& model, const std::string& domain) {
  for (const auto& opset : model.opset_import()) {
    if (opset.domain() == domain) return static_cast<int>(opset.version());
  }
  return 1;
}

Value read_value(const fs::path& path, const onnx::TypeProto& type) {
  if (!type.has_tensor_type()) throw Skip{"sequences, optionals and maps are outside AGPCS"};
  onnx::TensorProto proto;
  if (!proto.ParseFromString(read_file(path))) throw KernelError("cannot parse " + path.string());
  return value_of(proto);
}

// The first difference of data set `folder`, if any.
std::optional<std::string> run_data_set(const onnx::ModelProto& model, const fs::path& folder) {
  Values values;
  int given = 0;
  for (const auto& initializer : model.graph().initializer())
    values[initializer.name()] = value_of(initializer);
  for (const auto& input : model.graph().input()) {
    if (values.count(input.name()) != 0) continue;
    values[input.name()] = read_value(folder / fmt::format("input_{}.pb", given++), input.type());
  }
  std::vector<Value> expected;
  for (int i = 0; i < model.graph().output_size(); ++i) {
    expected.push_back(
        read_value(folder / fmt::format("output_{}.pb", i), model.graph().output(i).type()));
  }
  for (const auto& node : model.graph().node())
    run_node(node, version_of(model, node.domain()), values);
  for (int i = 0; i < model.graph().output_size(); ++i) {
    const std::string& name = model.graph().output(i).name();
    if (auto bad = difference(name, values.at(name).tensor, expected[static_cast<std::size_t>(i)]))
      return bad;
  }
  return std::nullopt;
}

// Their expected outputs come from NumPy's generator.
bool draws_from_numpy(const std::string& name) {
  static const std::set<std::string> kNames = {"test_bernoulli",
                                               "test_bernoulli_double",
                                               "test_bernoulli_double_expanded",
                                               "test_bernoulli_expanded",
                                               "test_bernoulli_seed",
                                               "test_bernoulli_seed_expanded",
                                               "test_training_dropout",
                                               "test_training_dropout_default",
                                               "test_training_dropout_default_mask",
                                               "test_training_dropout_mask"};
  return kNames.count(name) != 0;
}

// Inlines If, Loop and Scan with the values that the first data set has for their conditions. A
// model where that fails stays as it is.
void inline_with_inputs(onnx::ModelProto& model, const fs::path& folder) {
  onnx::ModelProto inlined = model;
  for (int i = 0; i < model.graph().input_size(); ++i) {
    onnx::TensorProto value;
    if (!model.graph().input(i).type().has_tensor_type()) return;
    if (!value.ParseFromString(read_file(folder / fmt::format("input_{}.pb", i)))) return;
    value.set_name(model.graph().input(i).name());
    *inlined.mutable_graph()->add_initializer() = std::move(value);
  }
  ImportOptions options;
  options.as_written = true;
  if (frontend::inline_control_flow(inlined, "model.onnx", options).ok()) model = inlined;
}

bool is_control_flow(const onnx::NodeProto& node) {
  return node.op_type() == "If" || node.op_type() == "Loop" || node.op_type() == "Scan";
}

}  // namespace

NodeTestResult run_node_test(const std::string& folder) {
  NodeTestResult result;
  onnx::ModelProto model;
  if (!model.ParseFromString(read_file(fs::path(folder) / "model.onnx"))) {
    return {NodeTestResult::kFailed, "cannot parse the model", {}};
  }
  if (std::any_of(model.graph().node().begin(), model.graph().node().end(), is_control_flow)) {
    inline_with_inputs(model, fs::path(folder) / "test_data_set_0");
  }
  std::set<std::string> types, unknown;
  for (const auto& node : model.graph().node()) {
    types.insert(full_type(node));
    if (node.op_type() != "Constant" && find_kernel(node.domain(), node.op_type()) == nullptr) {
      unknown.insert(full_type(node));
    }
  }
  result.operators.assign(types.begin(), types.end());
  if (!unknown.empty())
    return {NodeTestResult::kSkipped, "an operator is not executed", result.operators};
  if (draws_from_numpy(fs::path(folder).filename())) {
    return {NodeTestResult::kSkipped, "the expected output is drawn by NumPy's generator",
            result.operators};
  }
  try {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (!entry.is_directory()) continue;
      if (auto bad = run_data_set(model, entry.path()))
        return {NodeTestResult::kFailed, *bad, result.operators};
    }
    return {NodeTestResult::kPassed, "", result.operators};
  } catch (const Skip& skip) {
    return {NodeTestResult::kSkipped, skip.why, result.operators};
  } catch (const std::exception& error) {
    return {NodeTestResult::kFailed, brief(error), result.operators};
  }
}

namespace {

// The inputs of the model's first data set, floating ones in fp64, the first one (and the points of
// GridSample) moved a little: away from the kinks where examples like to lie.
Values double_inputs(const onnx::ModelProto& model, const fs::path& folder) {
  Values values;
  const at::Generator generator = at::detail::createCPUGenerator(4);
  for (int i = 0; i < model.graph().input_size(); ++i) {
    const auto& input = model.graph().input(i);
    Value value = read_value(folder / fmt::format("test_data_set_0/input_{}.pb", i), input.type());
    if (value.tensor.is_floating_point()) {
      value.tensor = value.tensor.to(at::kDouble);
      if (i == 0 || model.graph().node(0).op_type() == "GridSample")
        value.tensor =
            value.tensor + at::randn(value.tensor.sizes(), generator, at::kDouble) * 1e-3;
    }
    values[input.name()] = value;
  }
  return values;
}

// Sum of the first output that is there, each element weighted by a fixed random number. Further
// outputs (batch norm's statistics, layer norm's mean) have no gradient.
at::Tensor weighted_sum(const onnx::ModelProto& model, Values values) {
  const auto& node = model.graph().node(0);
  run_node(node, version_of(model, node.domain()), values);
  const at::Generator generator = at::detail::createCPUGenerator(5);
  const auto present = std::find_if(node.output().begin(), node.output().end(),
                                    [](const std::string& name) { return !name.empty(); });
  const at::Tensor out = values.at(*present).tensor.to(at::kDouble);
  return (out * at::randn(out.sizes(), generator, at::kDouble)).sum();
}

double relative_error(double a, double b) {
  return std::abs(a - b) / std::max({1e-3, std::abs(a), std::abs(b)});
}

}  // namespace

GradientCheck check_gradient(const std::string& folder) {
  constexpr double kStep = 1e-6;
  onnx::ModelProto model;
  model.ParseFromString(read_file(fs::path(folder) / "model.onnx"));
  GradientCheck check;
  const auto& node = model.graph().node(0);
  check.type = node.op_type();
  if (node.op_type() == "Cast") return check;  // differences do not survive rounding to fp32
  if (model.graph().node_size() != 1 || find_kernel(node.domain(), node.op_type()) == nullptr)
    return check;
  try {
    Values values = double_inputs(model, folder);
    for (auto& [name, value] : values)
      value.tensor.set_requires_grad(value.tensor.is_floating_point());
    const at::Tensor sum = weighted_sum(model, values);
    if (!sum.requires_grad()) return check;
    sum.backward();
    const at::Generator generator = at::detail::createCPUGenerator(6);
    Values above = values, below = values;
    double slope = 0;
    for (const auto& [name, value] : values) {
      if (!value.tensor.grad().defined()) continue;
      const at::Tensor direction = at::randn(value.tensor.sizes(), generator, at::kDouble);
      slope += (value.tensor.grad() * direction).sum().item<double>();
      above[name].tensor = value.tensor.detach() + direction * kStep;
      below[name].tensor = value.tensor.detach() - direction * kStep;
    }
    const double difference =
        (weighted_sum(model, above) - weighted_sum(model, below)).item<double>();
    check.done = std::isfinite(slope) && std::isfinite(difference);
    check.error = relative_error(slope, difference / (2 * kStep));
  } catch (const Skip&) {
  } catch (const std::exception& error) {
    check.done = true;
    check.exception = brief(error);
  }
  return check;
}

std::optional<NodeCase> single_node_case(const std::string& folder) {
  onnx::ModelProto model;
  NodeCase one{fs::path(folder).filename(), {}, {}, {}, {}};
  if (!model.ParseFromString(read_file(fs::path(folder) / "model.onnx"))) return std::nullopt;
  if (model.graph().node_size() != 1 || draws_from_numpy(one.test)) return std::nullopt;
  const auto& node = model.graph().node(0);
  if (find_kernel(node.domain(), node.op_type()) == nullptr) return std::nullopt;
  try {
    const fs::path data = fs::path(folder) / "test_data_set_0";
    Values inputs, outputs;
    for (int i = 0; i < model.graph().input_size(); ++i) {
      const auto& input = model.graph().input(i);
      inputs[input.name()] = read_value(data / fmt::format("input_{}.pb", i), input.type());
    }
    for (int i = 0; i < model.graph().output_size(); ++i) {
      const auto& output = model.graph().output(i);
      outputs[output.name()] = read_value(data / fmt::format("output_{}.pb", i), output.type());
    }
    one.op = op_of(node, version_of(model, node.domain()));
    for (const std::string& name : node.input()) {
      one.op.inputs.push_back(name.empty() ? kNone : static_cast<TensorId>(one.in.size()));
      one.in.push_back(inputs[name].tensor);
    }
    for (const std::string& name : node.output()) {
      one.op.outputs.push_back(name.empty() ? kNone : 0);
      one.expected.push_back(outputs[name].tensor);
      one.expected_types.push_back(outputs[name].onnx_type);
    }
  } catch (const Skip&) {
    return std::nullopt;
  }
  return one;
}

std::optional<std::string> difference_from_expected(const NodeCase& one, std::size_t i,
                                                    const at::Tensor& got) {
  return difference(fmt::format("{}", i), got, {one.expected[i], one.expected_types[i]});
}

std::vector<std::string> node_test_folders() {
  std::vector<std::string> folders;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(kFolder, absent)) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace agpcs::testing
