// SPDX-License-Identifier: Apache-2.0
// Reads signatures back. op_signature.cc has what is printed where.
#include "ir/graph/op_signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace agpcs {
namespace {

bool take(std::string_view& text, std::string_view start) {
  if (text.substr(0, start.size()) != start) return false;
  text.remove_prefix(start.size());
  return true;
}

template <typename Number>
bool take_number(std::string_view& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t at = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, at));
    text.remove_prefix(std::min(at + separator.size(), text.size()));
  }
  return parts;
}

/// Reads "32", "n", "2n" and "2n+1".
bool read_extent(std::string_view text, Extent& extent) {
  extent = {};
  std::int64_t number = 1;
  const bool has_number = take_number(text, number);
  if (!take(text, "n")) {
    extent.fixed = number;
    return has_number && text.empty();
  }
  extent.per_sample = number;
  return text.empty() || (take(text, "+") && take_number(text, extent.fixed) && text.empty());
}

/// Reads "fp32[n,64]" from the start of `text`.
bool take_tensor(std::string_view& text, Tensor& tensor) {
  const std::size_t open = text.find('['), close = text.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
    return false;
  }
  const std::optional<DType> type = dtype_named(text.substr(0, open));
  if (!type) return false;
  tensor.type = *type;
  for (const std::string_view part : split(text.substr(open + 1, close - open - 1), ",")) {
    tensor.shape.emplace_back();
    if (!read_extent(part, tensor.shape.back())) return false;
  }
  text.remove_prefix(close + 1);
  return true;
}

/// Reads a number, or several numbers as a list; nothing where it is a text.
std::optional<Attribute> read_attribute(std::string_view name, std::string_view text) {
  constexpr std::array<std::string_view, 4> kLists = {"dilations", "kernel_shape", "pads",
                                                      "strides"};  // also of one number
  std::vector<std::int64_t> values;
  for (std::string_view part : split(text, ",")) {
    std::int64_t value = 0;
    if (!take_number(part, value)) return std::nullopt;
    values.push_back(value);
    if (part.empty()) continue;
    double real = 0;
    std::string_view whole = text;
    if (take_number(whole, real) && whole.empty()) return Attribute(real);
    return std::nullopt;
  }
  const bool list =
      values.size() != 1 || std::find(kLists.begin(), kLists.end(), name) != kLists.end();
  return list ? Attribute(values) : Attribute(values.front());
}

class SignatureReader {
 public:
  std::optional<Graph> read(std::string_view text) {
    const std::size_t open = text.find('('), arrow = text.find(") -> ");
    if (open == std::string_view::npos || arrow == std::string_view::npos || arrow < open) {
      return std::nullopt;
    }
    Op& op = graph_.ops.emplace_back();
    const std::string_view name = text.substr(0, open);
    const std::size_t dot = name.rfind('.');
    if (dot != std::string_view::npos) op.domain = name.substr(0, dot);
    op.type = name.substr(dot == std::string_view::npos ? 0 : dot + 1);
    op.name = "op";
    for (const std::string_view part : split(text.substr(open + 1, arrow - open - 1), ", ")) {
      if (!read_input(part)) return std::nullopt;
    }
    text.remove_prefix(arrow + 5);
    const std::size_t brace = std::min(text.find(" {"), text.size());
    if (text.substr(0, brace).find(" in a ") != std::string_view::npos) return std::nullopt;
    for (const std::string_view part : split(text.substr(0, brace), ", ")) {
      if (!read_output(part)) return std::nullopt;
    }
    if (graph_.ops.front().outputs.empty()) return std::nullopt;
    if (brace < text.size()) read_attributes(text.substr(brace + 2));
    link_graph(graph_);
    return std::move(graph_);
  }

 private:
  TensorId add(Tensor tensor) {
    const auto id = static_cast<TensorId>(graph_.tensors.size());
    tensor.name = fmt::format("t{}", id);
    graph_.tensors.push_back(std::move(tensor));
    return id;
  }

  bool read_input(std::string_view text) {
    Op& op = graph_.ops.front();
    if (text == "-") return op.inputs.push_back(kNone), true;
    if (take(text, "#")) {
      std::size_t earlier = 0;
      if (!take_number(text, earlier) || earlier < 1 || earlier > op.inputs.size()) return false;
      return op.inputs.push_back(op.inputs[earlier - 1]), true;
    }
    Tensor tensor;
    if (!take_tensor(text, tensor)) return false;
    tensor.kind = TensorKind::kInput;
    if (take(text, "=")) {
      tensor.kind = TensorKind::kConstant;
      text = {};
    }
    if (take(text, "*")) tensor.kind = TensorKind::kParameter;
    tensor.needs_gradient = take(text, "'");
    gradient_ = gradient_ || tensor.needs_gradient;
    op.inputs.push_back(add(std::move(tensor)));
    return text.empty();
  }

  bool read_output(std::string_view text) {
    if (text == "-") return graph_.ops.front().outputs.push_back(kNone), true;
    Tensor tensor;
    if (!take_tensor(text, tensor)) return false;
    tensor.needs_gradient = gradient_;
    int sums = 0;
    if (take(text, "+") && (!take_number(text, sums) || sums < 1 || sums > kMostSums)) return false;
    const TensorId output = add(tensor);
    graph_.ops.front().outputs.push_back(output);
    for (int i = 0; sums > 0 && i <= sums; ++i) {  // consumers whose gradients are summed
      Op consumer;
      consumer.name = fmt::format("consumer{}", i);
      consumer.type = "Relu";
      consumer.inputs = {output};
      consumer.outputs = {add(tensor)};
      graph_.ops.push_back(std::move(consumer));
    }
    return text.empty();
  }

  void read_attributes(std::string_view text) {
    if (!text.empty() && text.back() == '}') text.remove_suffix(1);
    for (const std::string_view part : split(text, ", ")) {
      const std::size_t equals = part.find('=');
      if (equals == std::string_view::npos) continue;
      const std::string_view name = part.substr(0, equals);
      const auto value = read_attribute(name, part.substr(equals + 1));
      if (value) graph_.ops.front().attributes.emplace(name, *value);
    }
  }

  static constexpr int kMostSums = 1000;
  Graph graph_;
  bool gradient_ = false;
};

}  // namespace

std::optional<Graph> graph_of_signature(std::string_view signature) {
  return SignatureReader().read(signature);
}

}  // namespace agpcs
