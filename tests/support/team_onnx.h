// SPDX-License-Identifier: Apache-2.0
// The transformers of team_models.h as ONNX text, for commands that read a model's file.
#pragma once

#include "ir/base/check.h"
#include "ir/base/rng.h"
#include "tests/support/team_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs::testing {

/// Rewrites the lines of a `TransformerText`, or of one like it, but for its loss. Weights have
/// values.
class TransformerOnnx {
 public:
  explicit TransformerOnnx(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line) && line.rfind("constant rows", 0) != 0;) {
      add(line);
    }
    AGPCS_CHECK(!logits_.empty(), "no logits");
  }

  std::string text() const {
    return fmt::format(
        "<ir_version: 10, opset_import: [\"\": 24]>\nm ({}) => ({} logits)\n<\n{}\n>\n{{\n{}}}\n",
        fmt::join(inputs_, ", "), logits_, fmt::join(weights_, ",\n"), body_);
  }

 private:
  /// Returns "float[batch,6,4]" for "fp32[n,6,4]".
  static std::string type_of(const std::string& type) {
    std::string text = type.rfind("fp32", 0) == 0 ? "float" + type.substr(4) : type;
    const std::size_t batch = text.find("[n,");
    return batch == text.npos ? text : text.replace(batch, 2, "[batch");
  }

  void add(const std::string& line) {
    std::istringstream words(line);
    std::string kind, name, type, values;
    words >> kind >> name >> type >> values;
    if (kind == "input") {
      if (name != "labels") inputs_.push_back(type_of(type) + " " + name);
    } else if (kind == "parameter") {
      add_weight(name, type_of(type));
    } else if (kind == "constant") {
      write("  {} = Constant <value = {} {{{}}}> ()\n", name, type_of(type),
            values.substr(1, values.size() - 2));
    } else if (kind.back() == ':') {
      add_operator(line.substr(line.find(' ') + 1));
    }
  }

  /// Adds a weight of small values, or about 1 if it scales what is normalized ("h0_g_ln1").
  void add_weight(const std::string& name, const std::string& type) {
    std::istringstream dims(type.substr(type.find('[') + 1));
    std::int64_t elements = 1;
    for (std::string dim; std::getline(dims, dim, ',');) elements *= std::stoll(dim);
    const double middle = name.find("g_") == name.npos ? 0 : 1;
    std::vector<float> values;
    for (std::int64_t i = 0; i < elements; ++i) {
      values.push_back(static_cast<float>(middle + 0.3 * (rng_.uniform() - 0.5)));
    }
    weights_.push_back(fmt::format("  {} {} = {{{}}}", type, name, fmt::join(values, ",")));
  }

  /// "q, k = Split-18(x, sizes) axis=-1 -> types"
  void add_operator(const std::string& line) {
    const std::size_t equals = line.find(" = "), version = line.find('-', equals);
    const std::size_t open = line.find('(', version), close = line.find(')', open);
    const std::size_t arrow = line.find(" -> ", close);
    const std::string outputs = line.substr(0, equals);
    std::istringstream words(line.substr(close + 1, arrow - close - 1));
    const std::vector<std::string> attributes{std::istream_iterator<std::string>(words), {}};
    const std::string with =
        attributes.empty() ? "" : fmt::format("<{}>", fmt::join(attributes, ", "));
    write("  {} = {} {} {}\n", outputs, line.substr(equals + 3, version - equals - 3), with,
          line.substr(open, close - open + 1));
    if (outputs == "logits") logits_ = type_of(line.substr(arrow + 4));
  }

  template <typename... Args>
  void write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
  }

  std::vector<std::string> inputs_, weights_;
  Rng rng_{3};
  std::string body_, logits_;
};

}  // namespace agpcs::testing
