// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/op_signature.h"

#include "ir/graph/op_table_rules.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <variant>
#include <vector>

namespace agpcs {
namespace {

/// Constants of more elements appear as their digest.
constexpr std::size_t kWrittenOut = 16;

/// Quotes a text without line breaks: control characters, quotes and backslashes become "\x0a".
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    const bool plain = code >= 0x20 && code != 0x7f && c != '"' && c != '\\';
    out += plain ? std::string(1, c) : fmt::format("\\x{:02x}", code);
  }
  return out + "\"";
}

struct AttributeText {
  std::string operator()(std::int64_t value) const { return fmt::to_string(value); }
  std::string operator()(double value) const { return fmt::format("{:#}", value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  template <typename T>
  std::string operator()(const std::vector<T>& values) const {
    std::string text;
    for (const T& value : values) text += (text.empty() ? "" : ",") + (*this)(value);
    return text;
  }
};

std::string short_digest(std::string_view text) {
  const std::string digest = digest_of(text);
  return "#" + digest.substr(digest.find(':') + 1, 16);
}

std::string integers_text(const Constant& constant) {
  const std::vector<std::int64_t> fixed = constant.ints_at(0);
  Shape values;
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    values.push_back({fixed[i], constant.per_sample.empty() ? 0 : constant.per_sample[i]});
  }
  const std::string text = shape_text(values);
  return fixed.size() <= kWrittenOut ? text : short_digest(text);
}

/// Returns the part of a constant that its operator's work depends on: every integer (axes, shapes,
/// indices) and truth value, and a single floating number (an exponent, a ratio), but no table of
/// floating numbers.
std::string constant_text(const Tensor& t) {
  const std::vector<std::byte>& bytes = t.constant.bytes;
  if (bytes.empty()) return "";
  if (t.type == DType::kInt64) return "=" + integers_text(t.constant);
  const std::size_t elements = bytes.size() / size_of(t.type);
  if (is_floating(t.type) && elements != 1) return "";
  if (t.type == DType::kFp32) {
    float value = 0;
    std::memcpy(&value, bytes.data(), std::min(sizeof value, bytes.size()));
    return fmt::format("={:#}", value);
  }
  std::string text = "=0x";
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<int>(b));
  return elements <= kWrittenOut ? text : "=" + short_digest(text);
}

/// Prints an input. One that repeats an earlier input is "#1", with that input's position.
std::string input_text(const OpAt& at, std::size_t i) {
  const Tensor* tensor = at.input(i);
  if (tensor == nullptr) return "-";
  const std::vector<TensorId>& inputs = at.op.inputs;
  const auto same = std::find(inputs.begin(), inputs.end(), inputs[i]) - inputs.begin();
  if (static_cast<std::size_t>(same) < i) return fmt::format("#{}", same + 1);
  std::string text = type_text(*tensor);
  if (tensor->kind == TensorKind::kConstant && !tensor->frozen) text += constant_text(*tensor);
  if (tensor->kind == TensorKind::kParameter) text += '*';
  if (at.needs_gradient(i)) text += '\'';
  return text;
}

std::string output_text(const OpAt& at, std::size_t i) {
  const Tensor* tensor = at.output(i);
  if (tensor == nullptr) return "-";
  const int sums = gradient_sums(at, at.op.outputs[i]);
  return type_text(*tensor) + (sums > 0 ? fmt::format("+{}", sums) : "");
}

}  // namespace

std::string op_signature(const Graph& graph, OpId op) {
  const OpAt at{graph, graph.op(op), 1, Precision::kFp32};
  std::vector<std::string> inputs, outputs, attributes;
  for (std::size_t i = 0; i < at.op.inputs.size(); ++i) inputs.push_back(input_text(at, i));
  for (std::size_t i = 0; i < at.op.outputs.size(); ++i) outputs.push_back(output_text(at, i));
  for (const auto& [name, value] : at.op.attributes) {
    attributes.push_back(fmt::format("{}={}", name, std::visit(AttributeText(), value)));
  }
  const std::string domain = at.op.domain.empty() ? "" : at.op.domain + ".";
  std::string text = fmt::format("{}{}({}) -> {}", domain, at.op.type, fmt::join(inputs, ", "),
                                 fmt::join(outputs, ", "));
  if (at.op.fused != kNone) text += " in a fused attention";
  if (!attributes.empty()) text += fmt::format(" {{{}}}", fmt::join(attributes, ", "));
  return text;
}

}  // namespace agpcs
