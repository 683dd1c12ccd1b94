// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/graph.h"

#include <fmt/format.h>

#include <cstring>
#include <iterator>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

std::string_view kind_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::kInput:
      return "input";
    case TensorKind::kParameter:
      return "parameter";
    case TensorKind::kState:
      return "state";
    case TensorKind::kConstant:
      return "constant";
    case TensorKind::kPrepared:
      return "prepared";
    case TensorKind::kActivation:
      return "activation";
  }
  return "?";
}

std::string extent_text(const Extent& e) {
  if (e.per_sample == 0) return fmt::to_string(e.fixed);
  std::string text = e.per_sample == 1 ? "n" : fmt::format("{}n", e.per_sample);
  if (e.fixed != 0) text += fmt::format("+{}", e.fixed);
  return text;
}

/// Prints integers and fp32 scalars as numbers, and everything else as raw bytes, so that the
/// digest covers every value. A value in another file does not appear, so that reading it changes
/// no digest.
std::string value_text(const Tensor& t) {
  if (!t.external.location.empty()) return "external";
  if (t.type == DType::kInt64) {
    const std::vector<std::int64_t> base = t.constant.ints_at(0);
    std::string text = "{";
    for (std::size_t i = 0; i < base.size(); ++i) {
      const std::int64_t slope = t.constant.per_sample.empty() ? 0 : t.constant.per_sample[i];
      text += (i == 0 ? "" : ",") + extent_text({base[i], slope});
    }
    return text + "}";
  }
  if (t.type == DType::kFp32 && t.constant.bytes.size() == sizeof(float)) {
    float value = 0;
    std::memcpy(&value, t.constant.bytes.data(), sizeof value);
    return fmt::format("{{{}}}", value);
  }
  std::string text = "{0x";
  for (const std::byte b : t.constant.bytes)
    fmt::format_to(Out(text), "{:02x}", static_cast<int>(b));
  return text + "}";
}

struct AttributePrinter {
  std::string operator()(std::int64_t v) const { return fmt::to_string(v); }
  std::string operator()(double v) const { return fmt::format("{:#}", v); }
  std::string operator()(const std::string& v) const { return fmt::format("\"{}\"", v); }
  template <typename T>
  std::string operator()(const std::vector<T>& values) const {
    std::string text = "[";
    for (std::size_t i = 0; i < values.size(); ++i)
      text += (i == 0 ? "" : ",") + (*this)(values[i]);
    return text + "]";
  }
};

std::string tensor_names(const Graph& graph, const std::vector<TensorId>& ids) {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += ids[i] == kNone ? "_" : graph.tensor(ids[i]).name;
  }
  return text;
}

void print_op(const Graph& graph, const Op& op, std::string& text) {
  fmt::format_to(Out(text), "{}: {} = {}{}{}-{}({})", op.name, tensor_names(graph, op.outputs),
                 op.domain, op.domain.empty() ? "" : ".", op.type, op.version,
                 tensor_names(graph, op.inputs));
  for (const auto& [name, value] : op.attributes) {
    fmt::format_to(Out(text), " {}={}", name, std::visit(AttributePrinter(), value));
  }
  text += " ->";
  for (const TensorId id : op.outputs) {
    text += ' ';
    text += id == kNone ? "_" : type_text(graph.tensor(id));
  }
  text += '\n';
}

}  // namespace

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ",") + extent_text(shape[i]);
  }
  return text + "]";
}

std::string type_text(const Tensor& t) {
  return fmt::format("{}{}", name_of(t.type), shape_text(t.shape));
}

std::string print_graph(const Graph& graph) {
  std::string text = fmt::format("graph {}\n", graph.name);
  for (const auto& [name, value] : graph.dims)
    fmt::format_to(Out(text), "dim {}={}\n", name, value);
  for (const Tensor& t : graph.tensors) {
    if (t.kind == TensorKind::kActivation) continue;
    fmt::format_to(Out(text), "{} {} {}", kind_name(t.kind), t.name, type_text(t));
    if (t.kind == TensorKind::kConstant) text += " " + (t.frozen ? "frozen" : value_text(t));
    text += '\n';
  }
  for (const Op& op : graph.prologue) {
    text += "prologue ";
    print_op(graph, op, text);
  }
  for (const Op& op : graph.ops) print_op(graph, op, text);
  fmt::format_to(Out(text), "outputs {}\n", tensor_names(graph, graph.outputs));
  if (graph.loss != kNone) fmt::format_to(Out(text), "loss {}\n", graph.tensor(graph.loss).name);
  return text;
}

}  // namespace agpcs
