// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/modules.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <set>
#include <string>
#include <system_error>

namespace agpcs {

std::optional<ListElement> list_element(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  ListElement element{module.substr(0, dot)};
  const char* const last = module.data() + module.size();
  const auto [end, error] = std::from_chars(module.data() + dot + 1, last, element.number);
  if (error != std::errc() || end != last) return std::nullopt;
  return element;
}

std::optional<std::size_t> outermost_element(const Op& op) {
  for (std::size_t i = 0; i < op.modules.size(); ++i) {
    if (list_element(op.modules[i])) return i;
  }
  return std::nullopt;
}

std::vector<std::string_view> whole_modules(const Graph& graph) {
  std::set<std::string_view> with_lists;
  for (const Op& op : graph.ops) {
    const std::size_t element = outermost_element(op).value_or(0);
    with_lists.insert(op.modules.begin(),
                      op.modules.begin() + static_cast<std::ptrdiff_t>(element));
  }
  std::vector<std::string_view> modules;
  modules.reserve(graph.ops.size());
  for (const Op& op : graph.ops) {
    const auto whole =
        std::find_if(op.modules.begin(), op.modules.end(),
                     [&](const std::string& module) { return with_lists.count(module) == 0; });
    modules.push_back(whole == op.modules.end() ? std::string_view() : std::string_view(*whole));
  }
  return modules;
}

Status check_modules(const Graph& graph) {
  const bool known = std::any_of(graph.ops.begin(), graph.ops.end(),
                                 [](const Op& op) { return !op.modules.empty(); });
  if (known) return {};
  return invalid_input(
      "the model's file does not say which module computes an operator\n"
      "  hint: export it by agpcs.torch.export, or by torch.onnx.export(..., dynamo=True)");
}

}  // namespace agpcs
