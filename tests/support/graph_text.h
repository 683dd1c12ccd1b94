// SPDX-License-Identifier: Apache-2.0
// graph_of: reads the language that print_graph writes, so that tests say graphs in text.
//
//     graph tiny
//     input x fp32[n,4]
//     parameter w fp32[4,2]
//     mm: y = MatMul-17(x, w) -> fp32[n,2]
//     outputs y
#pragma once

#include "ir/graph/graph.h"

#include <cstddef>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

class GraphText {
 public:
  static Graph read(const std::string& text) {
    GraphText reader;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t start = line.find_first_not_of(' ');
      if (start != std::string::npos) reader.line(line.substr(start));
    }
    link_graph(reader.graph_);
    if (const Status status = verify_graph(reader.graph_); !status.ok()) fail(status.message());
    return std::move(reader.graph_);
  }

 private:
  [[noreturn]] static void fail(const std::string& what) { throw std::runtime_error(what); }

  static std::vector<std::string> split(std::string_view text, char by) {
    std::vector<std::string> parts;
    std::string part;
    for (const char c : text) {
      if (c == by) parts.push_back(std::exchange(part, {}));
      if (c != by && c != ' ') part += c;
    }
    if (!part.empty() || !parts.empty()) parts.push_back(part);
    return parts;
  }

  void line(const std::string& text) {
    std::istringstream words(text);
    std::string first;
    words >> first;
    static const std::map<std::string, TensorKind> kKinds = {{"input", TensorKind::kInput},
                                                             {"parameter", TensorKind::kParameter},
                                                             {"state", TensorKind::kState},
                                                             {"constant", TensorKind::kConstant},
                                                             {"prepared", TensorKind::kPrepared}};
    if (const auto kind = kKinds.find(first); kind != kKinds.end()) {
      std::string name, type, value;
      words >> name >> type >> value;
      leaf(kind->second, name, type, value);
    } else if (first == "graph") {
      words >> graph_.name;
    } else if (first == "outputs") {
      for (const std::string& name : split(text.substr(7), ',')) graph_.outputs.push_back(id(name));
    } else if (first == "loss") {
      graph_.loss = id(split(text.substr(4), ',').at(0));
    } else if (first == "prologue") {
      op(text.substr(first.size() + 1), graph_.prologue);
    } else {
      op(text, graph_.ops);
    }
  }

  TensorId id(const std::string& name) {
    if (name == "_") return kNone;
    const auto [it, added] = ids_.emplace(name, static_cast<TensorId>(graph_.tensors.size()));
    if (added) graph_.tensors.emplace_back().name = name;
    return it->second;
  }

  static Extent extent(const std::string& text) {
    const std::size_t n = text.find('n');
    if (n == std::string::npos) return {std::stoll(text), 0};
    const std::string rest = text.substr(n + 1);
    return {rest.empty() ? 0 : std::stoll(rest.substr(1)),
            n == 0 ? 1 : std::stoll(text.substr(0, n))};
  }

  void set_type(Tensor& tensor, const std::string& text) {
    const std::size_t open = text.find('[');
    const auto type = dtype_named(text.substr(0, open));
    if (!type) fail("no type in '" + text + "'");
    tensor.type = *type;
    tensor.shape.clear();
    for (const auto& e : split(text.substr(open + 1, text.size() - open - 2), ',')) {
      tensor.shape.push_back(extent(e));
    }
  }

  void leaf(TensorKind kind, const std::string& name, const std::string& type,
            const std::string& value) {
    Tensor& tensor = graph_.tensor(id(name));
    tensor.kind = kind;
    set_type(tensor, type);
    if (kind == TensorKind::kInput) graph_.inputs.push_back(id(name));
    if (value.size() < 2) return;
    for (const auto& item : split(value.substr(1, value.size() - 2), ',')) {
      if (tensor.type == DType::kInt64) append(tensor, static_cast<std::int64_t>(std::stoll(item)));
      if (tensor.type == DType::kFp32) append(tensor, std::stof(item));
      if (tensor.type != DType::kBool) continue;
      if (item != "0x00" && item != "0x01") fail("no bool, which is 0x00 or 0x01: " + item);
      append(tensor, item == "0x01");
    }
  }

  template <typename T>
  static void append(Tensor& tensor, T value) {
    const std::size_t at = tensor.constant.bytes.size();
    tensor.constant.bytes.resize(at + sizeof value);
    std::memcpy(tensor.constant.bytes.data() + at, &value, sizeof value);
  }

  static Attribute attribute(const std::string& text) {
    if (text[0] == '"') return text.substr(1, text.size() - 2);
    if (text[0] == '[') {
      std::vector<std::int64_t> ints;
      for (const auto& item : split(text.substr(1, text.size() - 2), ',')) {
        ints.push_back(std::stoll(item));
      }
      return ints;
    }
    if (text.find('.') != std::string::npos) return std::stod(text);
    return static_cast<std::int64_t>(std::stoll(text));
  }

  // name: out, out = domain.Type-version(in, in) key=value -> type type
  void op(const std::string& text, std::vector<Op>& ops) {
    const std::size_t colon = text.find(": "), equals = text.find(" = "), open = text.find('('),
                      close = text.find(')'), arrow = text.find(" -> ");
    if (colon == std::string::npos || arrow == std::string::npos) fail("no line: " + text);
    Op op;
    op.name = text.substr(0, colon);
    std::string type = text.substr(equals + 3, open - equals - 3);
    const std::size_t dash = type.rfind('-');
    op.version = std::stoi(type.substr(dash + 1));
    type.resize(dash);
    const std::size_t dot = type.rfind('.');
    if (dot != std::string::npos) op.domain = type.substr(0, dot);
    op.type = dot == std::string::npos ? type : type.substr(dot + 1);
    for (const auto& name : split(text.substr(open + 1, close - open - 1), ',')) {
      op.inputs.push_back(id(name));
    }
    std::istringstream keys(text.substr(close + 1, arrow - close - 1));
    for (std::string key; keys >> key;) {
      op.attributes[key.substr(0, key.find('='))] = attribute(key.substr(key.find('=') + 1));
    }
    std::istringstream types(text.substr(arrow + 4));
    for (const auto& name : split(text.substr(colon + 2, equals - colon - 2), ',')) {
      op.outputs.push_back(id(name));
      types >> type;
      if (name != "_") set_type(graph_.tensor(op.outputs.back()), type);
    }
    ops.push_back(std::move(op));
  }

  Graph graph_;
  std::map<std::string, TensorId> ids_;
};

inline Graph graph_of(const std::string& text) { return GraphText::read(text); }

}  // namespace agpcs
